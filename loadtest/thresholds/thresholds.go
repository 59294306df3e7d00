// Package thresholds measures how long after a request its event is on
// quota-events.v1, for a reader of what is committed.
package thresholds

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/loadtest/pace"
	"penstock.dev/loadtest/stats"
	"penstock.dev/loadtest/system"
	"penstock.dev/schemas"
	"penstock.dev/schemas/quotaeventsv1"
	"penstock.dev/schemas/wire"
)

// tenants is how many share the load; each has a quota of one unit for each user, so
// every new user's request exhausts one.
const tenants = 20

const (
	// begins is how long a changed rule may take until a gateway decides by it.
	begins = 10 * time.Second
	// arrives is how long the last events may take.
	arrives = 30 * time.Second
)

// Options say how much.
type Options struct {
	Schedule pace.Schedule
	Say      func(format string, args ...any)
}

// A Result is what was measured.
type Result struct {
	Requests  int           `json:"requests"`
	Rate      float64       `json:"rate"` // that the generator kept
	Refused   int           `json:"refused"`
	Failure   string        `json:"failure,omitempty"` // of one that was
	Missing   int           `json:"missing"`           // events that did not come
	Twice     int           `json:"twice"`             // and that came again
	Requested stats.Summary `json:"request_to_event"`
	Answered  stats.Summary `json:"answer_to_event"`
	Answer    stats.Summary `json:"request_to_answer"`
}

// Rows are the result as a table.
func (r *Result) Rows() []stats.Row {
	return []stats.Row{{Name: "request → event", Summary: r.Requested}, {Name: "answer → event", Summary: r.Answered}, {Name: "request → answer", Summary: r.Answer}}
}

// A request is one that was sent.
type request struct {
	due, answered time.Time
	id            string // of the decision
	err           error
}

// Run sends requests by the schedule, and waits for their events.
func Run(ctx context.Context, s *system.System, o Options) (r Result, err error) {
	run := time.Now().UnixMilli() // users of this run are nobody's of another
	made, err := prepare(ctx, s)
	defer func() { err = errors.Join(err, remove(context.WithoutCancel(ctx), s, made)) }()
	if err != nil {
		return r, err
	}
	events, err := follow(ctx, s)
	if err != nil {
		return r, err
	}
	defer events.stop()
	o.Say("%d requests, each of which exhausts a quota", o.Schedule.Count())
	deciders := s.Deciders()
	ask := func(user string, i int) (estate.Decision, error) {
		return deciders[i%len(deciders)].Decide(ctx, estate.Object{"tenant": tenant(i), "user": user, "method": http.MethodGet, "path": "/"})
	}
	for i := range 5 * tenants { // connections, and every partition's first transaction
		if _, err := ask(fmt.Sprintf("warm-%d-%d", run, i), i); err != nil {
			return r, err
		}
	}
	requests := make([]request, o.Schedule.Count())
	began := time.Now()
	pace.Run(ctx, o.Schedule, func(i int, due time.Time) {
		q := &requests[i]
		q.due = due
		d, err := ask(fmt.Sprintf("u-%d-%d", run, i), i)
		q.answered, q.id, q.err = time.Now(), d.DecisionID, err
		if err == nil && (d.Status != http.StatusOK || d.Degraded) {
			q.err = fmt.Errorf("%s, status %d, degraded %v", d.Outcome, d.Status, d.Degraded)
		}
	})
	r.Rate = float64(len(requests)) / max(time.Since(began), o.Schedule.For).Seconds()
	events.await(ctx, requests)
	r.count(requests, events)
	return r, ctx.Err()
}

// count makes the figures.
func (r *Result) count(requests []request, events *events) {
	var requested, answered, answer []time.Duration
	events.mu.Lock()
	defer events.mu.Unlock()
	r.Requests, r.Twice = len(requests), events.twice
	for i := range requests {
		q := &requests[i]
		if q.err != nil {
			r.Refused++
			r.Failure = q.err.Error()
			continue
		}
		answer = append(answer, q.answered.Sub(q.due))
		at, ok := events.seen[q.id]
		if !ok {
			r.Missing++
			continue
		}
		requested, answered = append(requested, at.Sub(q.due)), append(answered, max(0, at.Sub(q.answered)))
	}
	r.Requested, r.Answered, r.Answer = stats.Of(requested), stats.Of(answered), stats.Of(answer)
}

func tenant(i int) string { return "loadtest-thresholds-" + strconv.Itoa(i%tenants) }

// prepare makes the tenants and their quotas, and returns what it made.
func prepare(ctx context.Context, s *system.System) (made [][2]string, err error) {
	admin := s.Admin()
	put := func(kind, id string, o estate.Object) error {
		tag := "*"
		if _, _, err := admin.Get(ctx, kind, id); errors.Is(err, estate.ErrNotFound) {
			tag = ""
		}
		_, _, err := admin.Put(ctx, kind, id, tag, o)
		if err == nil {
			made = append(made, [2]string{kind, id})
		}
		return err
	}
	for i := range tenants {
		id := tenant(i)
		if err := put("tenants", id, estate.Object{"name": id}); err != nil {
			return made, err
		}
		if err := put("rules", id, estate.Object{
			"kind": "quota", "algorithm": "quota", "subject": []string{"tenant", "user"}, "match": estate.Object{"tenant": id}, "limit": 1,
			"period": estate.Object{"unit": "day", "count": 1, "alignment": "calendar"}, "thresholds": []int{100},
		}); err != nil {
			return made, err
		}
	}
	for i := range tenants {
		for _, d := range s.Deciders() {
			if err := inForce(ctx, d, tenant(i)); err != nil {
				return made, err
			}
		}
	}
	return made, nil
}

// inForce waits until a gateway decides by a rule.
func inForce(ctx context.Context, d *estate.Decider, id string) error {
	ctx, cancel := context.WithTimeout(ctx, begins)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		got, err := d.Decide(ctx, estate.Object{"tenant": id, "user": "peek", "method": http.MethodGet, "path": "/", "cost": 0})
		if _, ok := got.Limit(id); ok && err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not decide by %s within %v (%w)", d.URL, id, begins, err)
		case <-tick.C:
		}
	}
}

// remove takes away what prepare made.
func remove(ctx context.Context, s *system.System, made [][2]string) error {
	var errs []error
	for i := len(made) - 1; i >= 0; i-- {
		if err := s.Admin().Delete(ctx, made[i][0], made[i][1]); !errors.Is(err, estate.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// events knows when the event of which decision was first seen.
type events struct {
	client  *kgo.Client
	decoder *quotaeventsv1.Decoder
	done    sync.WaitGroup

	mu    sync.Mutex
	seen  map[string]time.Time // by decision
	ids   map[string]bool
	twice int
}

// newest is a registry that knows the newest schema alone: what this clone writes.
type newest struct{}

// Register is not needed for reading.
func (newest) Register(context.Context, string, string) (uint32, error) {
	return 0, errors.New("this registry is read only")
}

// Schema returns the newest schema, whatever is asked.
func (newest) Schema(context.Context, uint32) (string, []string, error) {
	return schemas.QuotaEventsV1, []string{quotaeventsv1.Subject}, nil
}

// follow reads quota-events.v1 from its end as it is now.
func follow(ctx context.Context, s *system.System) (*events, error) {
	e := &events{decoder: quotaeventsv1.NewDecoder(wire.NewIDs(newest{}, quotaeventsv1.Subject)), seen: map[string]time.Time{}, ids: map[string]bool{}}
	var err error
	e.client, err = kgo.NewClient(s.KafkaOption(), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.MetadataMinAge(100*time.Millisecond), kgo.DisableClientMetrics())
	if err != nil {
		return nil, err
	}
	ends, err := kadm.NewClient(e.client).ListEndOffsets(ctx, quotaeventsv1.Topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		e.client.Close()
		return nil, fmt.Errorf("ends of %s: %w", quotaeventsv1.Topic, err)
	}
	from := map[int32]kgo.Offset{}
	ends.Each(func(o kadm.ListedOffset) { from[o.Partition] = kgo.NewOffset().At(o.Offset) })
	e.client.AddConsumePartitions(map[string]map[int32]kgo.Offset{quotaeventsv1.Topic: from})
	e.done.Go(func() { e.run(ctx) })
	return e, nil
}

func (e *events) stop() {
	e.client.Close()
	e.done.Wait()
}

func (e *events) run(ctx context.Context) {
	for {
		fetches := e.client.PollFetches(ctx)
		now := time.Now()
		if fetches.IsClientClosed() || ctx.Err() != nil {
			return
		}
		fetches.EachRecord(func(r *kgo.Record) {
			event, err := e.decoder.Decode(ctx, r.Key, r.Value)
			if err != nil {
				return // it will be missing
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.ids[event.EventID] {
				e.twice++
				return
			}
			e.ids[event.EventID], e.seen[event.CauseDecisionID] = true, now
		})
	}
}

// await waits until the events of all requests were seen, or are late.
func (e *events) await(ctx context.Context, requests []request) {
	ctx, cancel := context.WithTimeout(ctx, arrives)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i := range requests {
		for q := &requests[i]; q.err == nil; {
			e.mu.Lock()
			_, ok := e.seen[q.id]
			e.mu.Unlock()
			if ok {
				break
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}
}
