package proof

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"penstock.dev/deploy/local/estate"
)

// A stage is the estate as the proofs use it. It is safe for concurrent use.
type stage struct {
	*estate.Estate
	admin *estate.Admin
	began time.Time
	mark  string // makes names new where an earlier demo may have left the same
	http  *http.Client
}

func newStage(e *estate.Estate, began time.Time) *stage {
	s := &stage{Estate: e, admin: e.Admin(), began: began, http: &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{MaxIdleConnsPerHost: 64},
	}}
	if !ownsAll(e) {
		s.mark = "-" + strconv.FormatInt(began.Unix(), 36)
	}
	return s
}

// ownsAll reports whether all that an estate keeps began with it.
func ownsAll(e *estate.Estate) bool {
	return e.Process(estate.Redis) != nil && e.Process(estate.Postgres) != nil && e.Process(estate.Kafka) != nil &&
		(e.Env["ELASTICSEARCH_URL"] == "" || e.Process(estate.Elasticsearch) != nil || e.Process(estate.OpenSearch) != nil)
}

func (s *stage) close() { s.http.CloseIdleConnections() }

// named is the id of an object of a proof.
func (s *stage) named(id string) string { return id + s.mark }

// An object of the catalogue.
type object struct {
	kind, id string
	body     estate.Object
}

// enforceWithin bounds the wait for a change to be in force.
const enforceWithin = 15 * time.Second

// enforce puts objects into the catalogue, in that order, and returns when every
// gateway decides by them.
func (s *stage) enforce(ctx context.Context, objects ...object) error {
	var version float64
	for _, o := range objects {
		put, _, err := s.admin.Put(ctx, o.kind, o.id, "*", o.body)
		if err != nil {
			return err
		}
		v, _ := put["version"].(float64)
		version = max(version, v)
	}
	return s.await(ctx, enforceWithin, func(ctx context.Context) error {
		for _, d := range s.Deciders() {
			got, err := d.Decide(ctx, estate.Object{"cost": 0})
			if err == nil && got.RulesVersion < int64(version) {
				err = fmt.Errorf("%s decides by revision %d, not yet by %.0f", d.URL, got.RulesVersion, version)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// await asks until ok returns nil, and fails with its last error.
func (*stage) await(ctx context.Context, within time.Duration, ok func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := ok(bounded)
		if err == nil {
			return nil
		}
		if last == nil || bounded.Err() == nil {
			last = err // one that came of the deadline says nothing
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-bounded.Done():
			return fmt.Errorf("not within %v: %w", within, last)
		case <-tick.C:
		}
	}
}

// key makes an API key of a tenant and returns its secret once every gateway
// knows it.
func (s *stage) key(ctx context.Context, tenant string) (string, error) {
	id := s.named(tenant)
	made, _, err := s.admin.Put(ctx, "api-keys", id, "", estate.Object{"tenant": id})
	if err != nil {
		return "", err
	}
	secret, _ := made["secret"].(string)
	return secret, s.await(ctx, enforceWithin, func(ctx context.Context) error {
		for _, d := range s.Deciders() {
			got, err := d.Decide(ctx, estate.Object{"api_key": secret, "cost": 0})
			if err == nil && got.Status == http.StatusUnauthorized {
				err = fmt.Errorf("%s does not know the key yet", d.URL)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// tenant is an object for a tenant of a proof. It has no plan, so no rule of the
// sample catalogue meets it but those for everybody.
func (s *stage) tenant(id, name string) object {
	return object{"tenants", s.named(id), estate.Object{"name": name}}
}

// An answered request.
type answered struct {
	status     int
	retryAfter string
}

// send sends one request as a client, with an API key unless that is empty.
func (s *stage) send(ctx context.Context, method, url, key string) (answered, error) {
	var body io.Reader = http.NoBody
	if method == http.MethodPost {
		body = strings.NewReader("{}")
	}
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return answered{}, err
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("X-API-Key", key)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return answered{}, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return answered{resp.StatusCode, resp.Header.Get("Retry-After")}, errors.Join(err, resp.Body.Close())
}

// sendAll sends n requests one after the other.
func (s *stage) sendAll(ctx context.Context, n int, method, url, key string) ([]answered, error) {
	all := make([]answered, 0, n)
	for range n {
		a, err := s.send(ctx, method, url, key)
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

// tally counts answers by status, e.g. "10 × 200, 30 × 429".
func tally(all []answered) string {
	statuses := make([]int, len(all))
	for i, a := range all {
		statuses[i] = a.status
	}
	return tallied(statuses)
}

func tallied(statuses []int) string {
	count := map[int]int{}
	for _, status := range statuses {
		count[status]++
	}
	var words []string
	for _, status := range slices.Sorted(maps.Keys(count)) {
		words = append(words, fmt.Sprintf("%d × %d", count[status], status))
	}
	return cmp.Or(strings.Join(words, ", "), "none")
}

func with(all []answered, status int) int {
	n := 0
	for _, a := range all {
		if a.status == status {
			n++
		}
	}
	return n
}

// together calls each function at once and waits for all of them.
func together(calls ...func() error) error {
	errs := make([]error, len(calls))
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	for i, call := range calls {
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-start
			errs[i] = call()
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
	return errors.Join(errs...)
}

// ms shows a short duration as measured.
func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

// span shows a duration that may be long.
func span(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Round(time.Millisecond).Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// signed shows a number that may be below zero, with a real minus.
func signed(n int64) string { return strings.Replace(strconv.FormatInt(n, 10), "-", "−", 1) }

// count shows how many there are of what.
func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
