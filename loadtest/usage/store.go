package usage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// storeName stands for the search store where processes are named.
const storeName = "store"

// A store is asked what it holds.
type store struct {
	url  string
	http *http.Client
}

// ask posts a question about all indices, nil for none, and reads the answer
// into got.
func (s *store) ask(ctx context.Context, path string, question, got any) error {
	var body []byte
	if question != nil {
		var err error
		if body, err = json.Marshal(question); err != nil {
			return err
		}
	}
	url := s.url + "/" + Prefix + "*/" + path
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if question != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := s.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %d %s", url, res.StatusCode, text)
	}
	return json.Unmarshal(text, got)
}

// count is the number of documents that can be seen.
func (s *store) count(ctx context.Context) (int, error) {
	var got struct{ Count int }
	err := s.ask(ctx, "_count", nil, &got)
	return got.Count, err
}

// settled is count once the store can be asked: the shards of an index just made
// take a moment.
func (s *store) settled(ctx context.Context) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		if n, err = s.count(ctx); err == nil {
			return n, nil
		}
		select {
		case <-ctx.Done():
			return 0, err
		case <-tick.C:
		}
	}
}

// refresh makes all documents visible. While many arrive it costs the store
// more than they do, so it waits until they seem to be there.
func (s *store) refresh(ctx context.Context) error {
	var ignored any
	return s.ask(ctx, "_refresh", nil, &ignored)
}

// await waits until there are as many documents as events, or until their
// number has stood still for too long. A store that does not answer is asked
// again.
func (s *store) await(ctx context.Context, o Options) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last, since, said := -1, time.Now(), time.Now()
	for {
		n, err := s.count(ctx)
		switch {
		case err == nil && n >= o.Events:
			return nil
		case err == nil && n != last:
			last, since = n, time.Now()
		case time.Since(since) > patience:
			return errors.Join(fmt.Errorf("%d documents for %v, of %d events", last, patience, o.Events), err)
		}
		if time.Since(said) > 10*time.Second {
			said = time.Now()
			o.Say("%d documents", last)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// examine counts what is there, and looks for gaps and repeats in every stream.
func (s *store) examine(ctx context.Context, r *Result) (err error) {
	if err := s.refresh(ctx); err != nil {
		return err
	}
	if r.Documents, err = s.count(ctx); err != nil {
		return err
	}
	if r.Indexed > 0 {
		r.PerSecond = float64(r.Documents) / r.Indexed
	}
	type value struct{ Value float64 }
	var got struct {
		Aggregations struct {
			Units   value
			Streams struct {
				Buckets []struct {
					Count     int `json:"doc_count"`
					Low, High value
				}
				Others int `json:"sum_other_doc_count"`
			}
		}
	}
	type of map[string]any
	err = s.ask(ctx, "_search", of{"size": 0, "aggs": of{
		"units": of{"sum": of{"field": "cost"}},
		"streams": of{"terms": of{"field": "streamId", "size": 10_000}, "aggs": of{
			"low": of{"min": of{"field": "sequence"}}, "high": of{"max": of{"field": "sequence"}},
		}},
	}}, &got)
	if err != nil {
		return err
	}
	r.UnitsFound = int64(got.Aggregations.Units.Value)
	r.Streams = len(got.Aggregations.Streams.Buckets)
	for _, b := range got.Aggregations.Streams.Buckets {
		if b.Low.Value != 1 || int(b.High.Value) != b.Count {
			r.Broken++
		}
	}
	if got.Aggregations.Streams.Others > 0 {
		r.Broken++
	}
	return nil
}
