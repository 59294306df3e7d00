package registry

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// A key is the key of a record of the topic, as Confluent's registry writes it.
// Field order matters: the key is compared as bytes when the topic is compacted.
type key struct {
	KeyType string  `json:"keytype"`
	Subject *string `json:"subject,omitempty"`
	Version int     `json:"version,omitempty"`
	Magic   int     `json:"magic"`
}

const (
	keySchema = "SCHEMA"
	keyConfig = "CONFIG"
	keyNoop   = "NOOP"
	// keyNextID is this registry's own: the lowest id never given, written
	// before a record that holds the highest id is deleted for good.
	keyNextID = "NEXT_ID"
)

// A Version is one schema of one subject.
type Version struct {
	Subject    string      `json:"subject"`
	Version    int         `json:"version"`
	ID         int         `json:"id"`
	References []Reference `json:"references,omitempty"`
	Schema     string      `json:"schema"`
	Deleted    bool        `json:"deleted"`
}

type configValue struct {
	Level Level `json:"compatibilityLevel"`
}

type nextIDValue struct {
	Next int `json:"nextId"`
}

// A change is a record of the topic. No value deletes.
type change struct {
	key   key
	value any
}

// state is what the topic says, as maps. It is not safe for concurrent use.
type state struct {
	subjects map[string]map[int]*Version
	levels   map[string]Level // "" is the global one
	nextID   int
	parsed   map[int]*schema // by id, filled as needed
}

func newState() *state {
	return &state{
		subjects: make(map[string]map[int]*Version),
		levels:   make(map[string]Level),
		nextID:   1,
		parsed:   make(map[int]*schema),
	}
}

// replay applies a record as read from the topic. Keys of unknown types are
// skipped, so that an older registry reads a newer topic.
func (s *state) replay(rawKey, rawValue []byte) error {
	var k key
	if err := json.Unmarshal(rawKey, &k); err != nil {
		return fmt.Errorf("key: %w", err)
	}
	c := change{key: k}
	if rawValue != nil {
		switch k.KeyType {
		case keySchema:
			c.value = new(Version)
		case keyConfig:
			c.value = new(configValue)
		case keyNextID:
			c.value = new(nextIDValue)
		default:
			return nil
		}
		if err := json.Unmarshal(rawValue, c.value); err != nil {
			return fmt.Errorf("value of %s: %w", rawKey, err)
		}
	}
	s.apply(c)
	return nil
}

// apply makes a change.
func (s *state) apply(c change) {
	var subject string
	if c.key.Subject != nil {
		subject = *c.key.Subject
	}
	switch v := c.value.(type) {
	case *Version:
		if s.subjects[subject] == nil {
			s.subjects[subject] = make(map[int]*Version)
		}
		s.subjects[subject][v.Version] = v
		s.nextID = max(s.nextID, v.ID+1)
	case *configValue:
		s.levels[subject] = v.Level
	case *nextIDValue:
		s.nextID = max(s.nextID, v.Next)
	case nil:
		switch c.key.KeyType {
		case keySchema:
			delete(s.subjects[subject], c.key.Version)
			if len(s.subjects[subject]) == 0 {
				delete(s.subjects, subject)
			}
		case keyConfig:
			delete(s.levels, subject)
		}
	}
}

func (v *Version) key() key {
	return key{KeyType: keySchema, Subject: &v.Subject, Version: v.Version, Magic: 1}
}

// versions returns the versions of a subject, oldest first, the deleted ones
// only when asked for.
func (s *state) versions(subject string, deleted bool) []*Version {
	var vs []*Version
	for _, v := range s.subjects[subject] {
		if deleted || !v.Deleted {
			vs = append(vs, v)
		}
	}
	slices.SortFunc(vs, func(a, b *Version) int { return cmp.Compare(a.Version, b.Version) })
	return vs
}

// all returns every version of every subject, by subject, then version.
func (s *state) all(deleted bool) []*Version {
	var vs []*Version
	for _, subject := range slices.Sorted(maps.Keys(s.subjects)) {
		vs = append(vs, s.versions(subject, deleted)...)
	}
	return vs
}

// byID returns every version with that id, also the deleted ones: what was
// written with a schema stays readable until the schema is deleted for good.
func (s *state) byID(id int) []*Version {
	return slices.DeleteFunc(s.all(true), func(v *Version) bool { return v.ID != id })
}

// level is the level that governs a subject, fallback when none was set.
func (s *state) level(subject string, fallback Level) Level {
	if l, ok := s.levels[subject]; ok {
		return l
	}
	if l, ok := s.levels[""]; ok {
		return l
	}
	return fallback
}

// schema returns the parsed schema of a version.
func (s *state) schema(v *Version) (*schema, error) {
	if p := s.parsed[v.ID]; p != nil {
		return p, nil
	}
	p, err := s.parse(v.Schema, v.References)
	if err != nil {
		return nil, fmt.Errorf("stored schema %d: %w", v.ID, err)
	}
	s.parsed[v.ID] = p
	return p, nil
}

// parse parses a text whose references are versions of this registry.
func (s *state) parse(text string, refs []Reference) (*schema, error) {
	return parse(text, refs, func(r Reference) (string, []Reference, error) {
		v := s.subjects[r.Subject][r.Version]
		if v == nil {
			return "", nil, fmt.Errorf("reference %s: subject %q has no version %d", r.Name, r.Subject, r.Version)
		}
		return v.Schema, v.References, nil
	})
}

// referrers returns the ids of the schemas that refer to a version, ascending.
func (s *state) referrers(subject string, version int) []int {
	ids := []int{}
	for _, v := range s.all(false) {
		if slices.ContainsFunc(v.References, func(r Reference) bool { return r.Subject == subject && r.Version == version }) {
			ids = append(ids, v.ID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// find returns the version of a subject that holds the same schema as p, the
// newest when several do.
func (s *state) find(subject string, p *schema, deleted bool) (*Version, error) {
	vs := s.versions(subject, deleted)
	for _, v := range slices.Backward(vs) {
		o, err := s.schema(v)
		if err != nil {
			return nil, err
		}
		if o.identity == p.identity {
			return v, nil
		}
	}
	return nil, nil
}

// idOf returns the id that any subject gave the schema, or the next free one.
func (s *state) idOf(p *schema) (int, error) {
	for _, v := range s.all(true) {
		o, err := s.schema(v)
		if err != nil {
			return 0, err
		}
		if o.identity == p.identity {
			return v.ID, nil
		}
	}
	return s.nextID, nil
}
