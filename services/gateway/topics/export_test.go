package topics

import "slices"

// SnapshotKeys lists the keys in a snapshot.
func SnapshotKeys(dir string) ([]string, error) {
	s, err := loadSnapshot(dir)
	if s == nil || err != nil {
		return nil, err
	}
	var keys []string
	for key := range s.records.All() {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys, nil
}

// CheckSnapshot reads the bytes of one.
func CheckSnapshot(b []byte) error {
	_, err := readSnapshot(b)
	return err
}

// PutInSnapshot adds a record to a snapshot.
func PutInSnapshot(dir, key string, value []byte) error {
	s, err := loadSnapshot(dir)
	if err != nil {
		return err
	}
	e := s.records.Edit()
	e.Set(key, kept{1, value})
	s.records = e.Map()
	return saveSnapshot(dir, s)
}

// Compile is how conditions are compiled.
var Compile = compile

// MaxConditions bounds those that are shared.
const MaxConditions = maxConditions
