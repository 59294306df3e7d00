package server

import (
	"fmt"
	"os/exec"
)

// FindPython returns the first Python of the PATH, or else Debian's own, that
// has what Need(Python) installs. Another Python that comes first in the PATH
// does not see Debian's packages.
func FindPython() (string, error) {
	for _, path := range []string{"python3", "/usr/bin/python3"} {
		if path, err := exec.LookPath(path); err == nil &&
			exec.Command(path, "-c", "import avro, kafka, lz4, snappy, zstandard").Run() == nil { //nolint:noctx // ends by itself, at once
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: no Python with kafka and avro", ErrMissing)
}
