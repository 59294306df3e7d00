package registry

import (
	"context"
	"fmt"
	"slices"
)

// Register makes text the newest version of the subject and returns its id. A
// subject that already has the schema is left as it is. An incompatible schema
// leaves nothing behind.
func (r *Registry) Register(ctx context.Context, subject, text string, refs []Reference) (int, error) {
	var id int
	err := r.alone(ctx, func(s *state) error {
		next, err := s.parse(text, refs)
		if err != nil {
			return errInvalidSchema(err)
		}
		same, err := s.find(subject, next, false)
		if err != nil {
			return errStore(err)
		}
		if same != nil {
			id = same.ID
			return nil
		}
		faults, err := r.faults(s, subject, next, s.versions(subject, false))
		if err != nil {
			return err
		}
		if len(faults) > 0 {
			return errIncompatible(subject, faults)
		}
		if id, err = s.idOf(next); err != nil {
			return errStore(err)
		}
		number := 1
		if vs := s.versions(subject, true); len(vs) > 0 {
			number = vs[len(vs)-1].Version + 1
		}
		v := &Version{Subject: subject, Version: number, ID: id, References: refs, Schema: text}
		return r.commit(ctx, change{v.key(), v})
	})
	return id, err
}

// faults returns what makes next incompatible with the given older versions.
func (r *Registry) faults(s *state, subject string, next *schema, older []*Version) ([]string, error) {
	var parsed []*schema
	for _, v := range older {
		p, err := s.schema(v)
		if err != nil {
			return nil, errStore(err)
		}
		parsed = append(parsed, p)
	}
	return check(s.level(subject, r.level), next, parsed), nil
}

// lookup returns the version of the subject that holds the schema.
func (r *Registry) lookup(ctx context.Context, subject, text string, refs []Reference, deleted bool) (*Version, error) {
	var found *Version
	err := r.alone(ctx, func(s *state) error {
		if len(s.versions(subject, deleted)) == 0 {
			return errSubject(subject)
		}
		p, err := s.parse(text, refs)
		if err != nil {
			return errInvalidSchema(err)
		}
		if found, err = s.find(subject, p, deleted); err != nil {
			return errStore(err)
		}
		if found == nil {
			return errNoSuchSchema()
		}
		return nil
	})
	return found, err
}

// compatible tells whether text could follow one version of the subject, or all
// that its level asks for when version is empty.
func (r *Registry) compatible(ctx context.Context, subject, version, text string, refs []Reference) ([]string, error) {
	var faults []string
	err := r.alone(ctx, func(s *state) error {
		older := s.versions(subject, false)
		if version != "" {
			v, err := s.version(subject, version, false)
			if err != nil {
				return err
			}
			older = []*Version{v}
		}
		next, err := s.parse(text, refs)
		if err != nil {
			return errInvalidSchema(err)
		}
		faults, err = r.faults(s, subject, next, older)
		return err
	})
	return faults, err
}

// deleteSubject deletes all versions: first so that they can no longer be
// found, then, with permanent, for good.
func (r *Registry) deleteSubject(ctx context.Context, subject string, permanent bool) ([]int, error) {
	var gone []int
	err := r.alone(ctx, func(s *state) error {
		all, live := s.versions(subject, true), s.versions(subject, false)
		switch {
		case len(all) == 0:
			return errSubject(subject)
		case permanent && len(live) > 0:
			return notFound(40405, "Subject '%s' was not deleted first before being permanently deleted", subject)
		case !permanent && len(live) == 0:
			return notFound(40404, "Subject '%s' was soft deleted. Set permanent=true to delete permanently", subject)
		}
		victims := live
		if permanent {
			victims = all
		}
		for _, v := range victims {
			if err := unreferenced(s, v); err != nil {
				return err
			}
			gone = append(gone, v.Version)
		}
		changes := removals(s, victims, permanent)
		if _, ok := s.levels[subject]; ok && !permanent {
			changes = append(changes, change{key: configKey(subject)})
		}
		return r.commit(ctx, changes...)
	})
	return gone, err
}

// deleteVersion is deleteSubject for one version.
func (r *Registry) deleteVersion(ctx context.Context, subject, version string, permanent bool) (int, error) {
	var number int
	err := r.alone(ctx, func(s *state) error {
		v, err := s.version(subject, version, true)
		if err != nil {
			return err
		}
		switch {
		case permanent && !v.Deleted:
			return notFound(40407, "Subject '%s' Version %d was not deleted first before being permanently deleted", subject, v.Version)
		case !permanent && v.Deleted:
			return notFound(40406, "Subject '%s' Version %d was soft deleted. Set permanent=true to delete permanently", subject, v.Version)
		}
		if err := unreferenced(s, v); err != nil {
			return err
		}
		number = v.Version
		return r.commit(ctx, removals(s, []*Version{v}, permanent)...)
	})
	return number, err
}

func unreferenced(s *state, v *Version) error {
	if ids := s.referrers(v.Subject, v.Version); len(ids) > 0 {
		return unprocessable(42206, "One or more references exist to the schema {magic=1,keytype=SCHEMA,subject=%s,version=%d}: ids %v", v.Subject, v.Version, ids)
	}
	return nil
}

// removals are the changes that delete the versions. Before one is forgotten
// for good, the next free id is written down.
func removals(s *state, versions []*Version, permanent bool) []change {
	var changes []change
	if permanent {
		changes = append(changes, change{key{KeyType: keyNextID}, &nextIDValue{s.nextID}})
	}
	for _, v := range versions {
		if permanent {
			changes = append(changes, change{key: v.key()})
			continue
		}
		gone := *v
		gone.Deleted = true
		changes = append(changes, change{v.key(), &gone})
	}
	return changes
}

// version finds a version by its number or "latest".
func (s *state) version(subject, version string, deleted bool) (*Version, error) {
	vs := s.versions(subject, deleted)
	if len(vs) == 0 {
		return nil, errSubject(subject)
	}
	if version == "latest" || version == "-1" {
		if live := s.versions(subject, false); len(live) > 0 {
			return live[len(live)-1], nil
		}
		return vs[len(vs)-1], nil
	}
	n, err := positive(version)
	if err != nil {
		return nil, errInvalidVersion(version)
	}
	i := slices.IndexFunc(vs, func(v *Version) bool { return v.Version == n })
	if i < 0 {
		return nil, errVersion(n)
	}
	return vs[i], nil
}

func configKey(subject string) key {
	k := key{KeyType: keyConfig}
	if subject != "" {
		k.Subject = &subject
	}
	return k
}

// setLevel sets the level of a subject, or with "" the one for all others.
func (r *Registry) setLevel(ctx context.Context, subject string, l Level) error {
	return r.alone(ctx, func(*state) error {
		return r.commit(ctx, change{configKey(subject), &configValue{l}})
	})
}

// resetLevel takes a level back and returns what it was.
func (r *Registry) resetLevel(ctx context.Context, subject string) (Level, error) {
	var was Level
	err := r.alone(ctx, func(s *state) error {
		l, ok := s.levels[subject]
		if !ok && subject != "" {
			return errNoLevel(subject)
		}
		if was = l; !ok {
			was = r.level
			return nil
		}
		return r.commit(ctx, change{key: configKey(subject)})
	})
	return was, err
}

func errNoLevel(subject string) error {
	return notFound(40408, "Subject '%s' does not have subject-level compatibility configured", subject)
}

// levelOf returns the level of a subject: its own, or with inherit the one that
// governs it.
func (r *Registry) levelOf(subject string, inherit bool) (Level, error) {
	var l Level
	err := r.beside(func(s *state) error {
		own, ok := s.levels[subject]
		if !ok && subject != "" && !inherit {
			return errNoLevel(subject)
		}
		if l = own; !ok {
			l = s.level(subject, r.level)
		}
		return nil
	})
	return l, err
}

// positive reads a whole number from 1 to 2^31-1.
func positive(s string) (int, error) {
	var n int
	for _, c := range s {
		if c < '0' || c > '9' || n > (1<<31-1)/10 {
			return 0, fmt.Errorf("%q is not a number from 1 to 2^31-1", s)
		}
		n = n*10 + int(c-'0')
	}
	if n < 1 || n > 1<<31-1 {
		return 0, fmt.Errorf("%q is not a number from 1 to 2^31-1", s)
	}
	return n, nil
}
