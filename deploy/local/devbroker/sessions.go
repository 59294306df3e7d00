package devbroker

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// forgetFetchSessions drops the fetch sessions that the broker wrote down when
// it stopped, as a real broker does. Restored, they have lost the ids of their
// topics, and a client that goes on with one asks a hundred thousand times in
// ten seconds without getting a record.
func forgetFetchSessions(logDir string) error {
	path := filepath.Join(logDir, "session_state.json")
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var state map[string]json.RawMessage
	if json.Unmarshal(raw, &state) != nil {
		return os.Remove(path) // what it holds is worth a rebalance, not more
	}
	delete(state, "fetchSessions")
	if raw, err = json.Marshal(state); err != nil {
		return err
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, raw, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
