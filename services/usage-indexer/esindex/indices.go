package esindex

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/elastic/go-elasticsearch/v8/esapi"

	"penstock.dev/services/usage-indexer/usagedoc"
)

// How often the housekeeping is done, and how soon again after a failure.
const (
	maintainEvery = 10 * time.Minute
	maintainAgain = 15 * time.Second
)

// Maintain keeps the template in place, makes the indices of today and tomorrow
// before they are needed, and deletes those beyond the retention, until ctx ends.
// Several may run at once.
func (s *Store) Maintain(ctx context.Context) error {
	for {
		wait := maintainEvery
		if !s.maintain(ctx) {
			wait = maintainAgain
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// maintain does the housekeeping once and reports whether all of it was done.
func (s *Store) maintain(ctx context.Context) bool {
	today := usagedoc.DayOf(s.now().UnixMicro())
	done := true
	for _, step := range []struct {
		task task
		do   func(context.Context) error
	}{
		{taskTemplate, s.keepTemplate},
		{taskIndices, func(ctx context.Context) error { return s.ensure(ctx, today) }},
		{taskIndices, func(ctx context.Context) error { return s.ensure(ctx, today+1) }},
		{taskRetention, s.expire},
	} {
		if err := step.do(ctx); err != nil && ctx.Err() == nil {
			s.metrics.failures[step.task].Inc()
			s.log.Warn("housekeeping of the store is not done; trying again", "task", string(step.task), "error", err.Error())
			done = false
		}
	}
	return done
}

// prepare makes sure that the indices of the entries that part names are there.
func (s *Store) prepare(ctx context.Context, entries []usagedoc.Entry, part []int) error {
	last := usagedoc.Day(math.MinInt32)
	for _, i := range part {
		if d := entries[i].Day; d != last {
			if err := s.ensure(ctx, d); err != nil {
				return err
			}
			last = d
		}
	}
	return nil
}

// ensure makes sure that a day's index is there, with the mapping. Making it
// beforehand, and not by the first document, is what keeps a bulk request from
// hanging where an index cannot be made.
func (s *Store) ensure(ctx context.Context, d usagedoc.Day) error {
	if _, ok := s.made.Load(d); ok {
		return nil
	}
	s.making.Lock()
	defer s.making.Unlock()
	if _, ok := s.made.Load(d); ok {
		return nil
	}
	if !s.placed {
		if err := s.place(ctx, true); err != nil {
			return err
		}
	}
	if err := s.makeIndex(ctx, s.indexName(d)); err != nil {
		return err
	}
	s.made.Store(d, true)
	return nil
}

// forget has a day's index looked for again.
func (s *Store) forget(d usagedoc.Day) { s.made.Delete(d) }

// makeIndex makes an index, or gives one that is there the fields that it does
// not have yet: a new release may have brought some since it was made.
func (s *Store) makeIndex(ctx context.Context, name string) error {
	status, answer, err := s.send(ctx, esapi.IndicesExistsRequest{Index: []string{name}})
	if err != nil {
		return fmt.Errorf("look for index %s: %w", name, err)
	}
	if status == http.StatusOK {
		s.updateMapping(ctx, name)
		return nil
	}
	if status != http.StatusNotFound {
		return unmade("look for index "+name, status, answer)
	}
	body, err := json.Marshal(map[string]any{"mappings": mapping()})
	if err != nil {
		return err
	}
	status, answer, err = s.send(ctx, esapi.IndicesCreateRequest{
		Index: name, Body: bytes.NewReader(body), Timeout: s.cfg.Timeout / 2, MasterTimeout: s.cfg.Timeout / 2,
	})
	switch {
	case err != nil:
		return fmt.Errorf("make index %s: %w", name, err)
	case status >= 300 && faultOf(answer).Type != "resource_already_exists_exception":
		return unmade("make index "+name, status, answer)
	}
	return nil
}

// updateMapping is not a condition for writing: what another mapping refuses is
// refused document by document.
func (s *Store) updateMapping(ctx context.Context, name string) {
	body, err := json.Marshal(mapping())
	if err == nil {
		var status int
		var answer []byte
		status, answer, err = s.send(ctx, esapi.IndicesPutMappingRequest{Index: []string{name}, Body: bytes.NewReader(body)})
		if err == nil && status >= 300 {
			err = unmade("update", status, answer)
		}
	}
	if err != nil {
		s.log.Warn("an index that was there has another mapping; documents may be refused, or not be found by all fields",
			"index", name, "error", err.Error())
	}
}

// unmade is an answer that says no to something other than a bulk request.
func unmade(what string, status int, answer []byte) *trouble {
	t := &trouble{paused, causePaused, fmt.Sprintf("%s: answer %d: %s", what, status, faultOf(answer))}
	switch {
	case status == http.StatusTooManyRequests:
		t.class, t.cause = again, causeRejected
	case status >= 500 || status == http.StatusRequestTimeout:
		t.class, t.cause = again, causeUnavailable
	}
	return t
}

// keepTemplate puts the template back if somebody took it away.
func (s *Store) keepTemplate(ctx context.Context) error {
	s.making.Lock()
	defer s.making.Unlock()
	return s.place(ctx, !s.placed)
}

// place puts the template in place: where there is none, where there is an older
// one, and at the start of a run also where there is one with other settings.
// Later it does not, or two instances with different knobs would take turns.
func (s *Store) place(ctx context.Context, start bool) error {
	body, fingerprint := s.template()
	name := s.cfg.Prefix
	status, answer, err := s.send(ctx, esapi.IndicesGetIndexTemplateRequest{Name: name})
	switch {
	case err != nil:
		return fmt.Errorf("look for template %s: %w", name, err)
	case status >= 300 && status != http.StatusNotFound:
		return unmade("look for template "+name, status, answer)
	}
	if status < 300 {
		version, there := templateThere(answer)
		if version > templateVersion {
			s.log.Info("a newer release keeps the index template", "template", name, "version", version)
		}
		if version > templateVersion || version == templateVersion && (!start || there == fingerprint) {
			s.placed = true
			return nil
		}
	}
	status, answer, err = s.send(ctx, esapi.IndicesPutIndexTemplateRequest{Name: name, Body: bytes.NewReader(body)})
	switch {
	case err != nil:
		return fmt.Errorf("put template %s: %w", name, err)
	case status >= 300:
		return unmade("put template "+name, status, answer)
	}
	s.placed = true
	s.log.Info("index template put in place", "template", name, "version", templateVersion)
	return nil
}

// templateThere reads the version and the fingerprint of the template in an
// answer; one of nobody's has neither.
func templateThere(answer []byte) (version int, fingerprint string) {
	var there struct {
		Templates []struct {
			Template struct {
				Version int `json:"version"`
				Meta    struct {
					Fingerprint string `json:"fingerprint"`
				} `json:"_meta"`
			} `json:"index_template"`
		} `json:"index_templates"`
	}
	if json.Unmarshal(answer, &there) != nil || len(there.Templates) == 0 {
		return 0, ""
	}
	t := there.Templates[0].Template
	return t.Version, t.Meta.Fingerprint
}

// expire deletes the indices of days beyond the retention, each by its whole name,
// and none whose name is not exactly one that this service gives.
func (s *Store) expire(ctx context.Context) error {
	if s.cfg.Retention == 0 {
		return nil
	}
	status, answer, err := s.send(ctx, esapi.CatIndicesRequest{
		Index: []string{s.cfg.Prefix + "-*"}, Format: "json", H: []string{"index"}, ExpandWildcards: "open,closed",
	})
	switch {
	case err != nil:
		return fmt.Errorf("list indices: %w", err)
	case status >= 300:
		return unmade("list indices", status, answer)
	}
	var listed []struct {
		Index string `json:"index"`
	}
	if err := json.Unmarshal(answer, &listed); err != nil {
		return fmt.Errorf("list indices: %w", err)
	}
	var expired []usagedoc.Day
	window := usagedoc.WindowAt(s.now(), s.cfg.Retention)
	for _, l := range listed {
		if d, ok := usagedoc.ParseIndexName(s.cfg.Prefix, l.Index); ok && window.Expired(d) {
			expired = append(expired, d)
		}
	}
	slices.Sort(expired)
	for _, d := range expired {
		if err := s.deleteIndex(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) deleteIndex(ctx context.Context, d usagedoc.Day) error {
	name := s.indexName(d)
	s.forget(d)
	status, answer, err := s.send(ctx, esapi.IndicesDeleteRequest{Index: []string{name}})
	switch {
	case err != nil:
		return fmt.Errorf("delete index %s: %w", name, err)
	case status == http.StatusNotFound: // another instance was quicker
		return nil
	case status >= 300:
		return unmade("delete index "+name, status, answer)
	}
	s.metrics.deleted.Inc()
	s.log.Info("index deleted, it was beyond the retention", "index", name, "retention_days", s.cfg.Retention)
	return nil
}
