// Package propagation measures how long a change of a rule takes from its
// commit to where it counts: stored on rules.v1, and enforced by a gateway.
//
// The commit's time is PostgreSQL's own (pg_xact_commit_timestamp of the outbox
// row); everything runs on one machine and one clock. It is taken before the
// commit is flushed to disk, so the flush counts.
package propagation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/loadtest/pace"
	"penstock.dev/loadtest/stats"
	"penstock.dev/loadtest/system"
)

// Options say how much of what is measured.
type Options struct {
	Schedule pace.Schedule // of changes
	// Debezium has the real connector read the outbox beside the relay, once
	// for each of these values of poll.interval.ms.
	Debezium []int
	Say      func(format string, args ...any) // progress
}

// A Result is what was measured. Durations count from the commit.
type Result struct {
	Rate         float64       `json:"changes_per_second"` // achieved
	Changes      int           `json:"changes"`
	Failed       int           `json:"failed"`         // changes that rule-admin refused
	Failure      string        `json:"why,omitempty"`  // one of them
	Missing      int           `json:"missing"`        // committed, and not seen everywhere
	Contradicted int           `json:"contradictions"` // answers that decide by another limit than their rules_version says
	Look         stats.Summary `json:"one_look"`       // at a gateway: "enforced" is rounded up by less than this
	Put          stats.Summary `json:"put"`            // from due to rule-admin's answer
	Stored       stats.Summary `json:"stored"`         // on rules.v1, as a consumer sees it
	Enforced     []stats.Row   `json:"enforced"`       // by each gateway
	Answered     []stats.Row   `json:"answered"`       // the same, but from rule-admin's answer; 0 where it came later
	Debezium     []stats.Row   `json:"debezium"`       // stored by the real connector, by poll.interval.ms
}

// Rows are the result as a table.
func (r Result) Rows() []stats.Row {
	rows := []stats.Row{{Name: "commit → stored on rules.v1 (relay)", Summary: r.Stored}}
	rows = append(append(rows, r.Enforced...), r.Answered...)
	rows = append(rows, r.Debezium...)
	return append(rows,
		stats.Row{Name: "one look at a gateway", Summary: r.Look},
		stats.Row{Name: "due → answered by rule-admin", Summary: r.Put})
}

// settle bounds the wait for the last changes to be seen everywhere.
const settle = 20 * time.Second

// How long changes are made before any counts; Java's compiler needs longer.
const (
	warmUp     = time.Second
	warmUpJava = 15 * time.Second
)

// Run changes rules by the schedule and measures. It removes what it made.
func Run(ctx context.Context, s *system.System, o Options) (r Result, err error) {
	rules, err := makeRules(ctx, s)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, rules.remove(context.WithoutCancel(ctx))) }()
	connectors, err := startDebezium(ctx, s, o)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, connectors.stop(context.WithoutCancel(ctx))) }()
	watch := watchGateways(ctx, s)
	defer watch.stop()
	logs, err := follow(ctx, s, connectors.topics(), watch)
	if err != nil {
		return r, err
	}
	defer logs.stop()

	before := warmUp
	if len(o.Debezium) > 0 {
		before = warmUpJava
	}
	o.Say("warming up: %v", before)
	warm := rules.change(ctx, pace.Schedule{Rate: o.Schedule.Rate, For: before})
	if err := logs.await(ctx, newest(warm), settle); err != nil {
		return r, fmt.Errorf("warming up: %w", err)
	}
	watch.forget()
	o.Say("changing rules: %.0f a second for %v", o.Schedule.Rate, o.Schedule.For)
	began := time.Now()
	changes := rules.change(ctx, o.Schedule)
	r.Rate = float64(len(changes)) / time.Since(began).Seconds()
	if err := errors.Join(logs.await(ctx, newest(changes), settle), watch.await(ctx, settle)); err != nil {
		o.Say("%v", err) // and it counts as missing
	}
	for _, g := range watch.gateways {
		r.Contradicted += g.contradictions(append(warm, changes...))
	}
	return r, r.collect(ctx, s, changes, logs, watch, connectors)
}

// newest is the version that was committed last.
func newest(changes []*change) (version int64) {
	for _, c := range changes {
		version = max(version, c.version)
	}
	return version
}

// collect turns what was observed into durations since the commits.
func (r *Result) collect(ctx context.Context, s *system.System, changes []*change, logs *logs, watch *watch, d *connectors) error {
	commits, err := commitTimes(ctx, s, changes)
	if err != nil {
		return err
	}
	missing := map[int64]bool{}
	since := func(seen func(*change) (time.Time, bool)) stats.Summary {
		var took []time.Duration
		for _, c := range changes {
			committed, ok := commits[c.version]
			if !ok {
				continue
			}
			if at, ok := seen(c); ok {
				took = append(took, at.Sub(committed))
			} else {
				missing[c.version] = true
			}
		}
		return stats.Of(took)
	}
	on := func(topic string) stats.Summary {
		return since(func(c *change) (time.Time, bool) { return logs.at(topic, c.version) })
	}
	r.Stored = on(rulesTopic)
	var looks []time.Duration
	for _, g := range watch.gateways {
		looks = append(looks, g.took()...)
		r.Enforced = append(r.Enforced, stats.Row{
			Name:    "commit → enforced by " + g.URL,
			Summary: since(func(c *change) (time.Time, bool) { return g.enforced(c.version) }),
		})
		r.Answered = append(r.Answered, stats.Row{Name: "answered → enforced by " + g.URL, Summary: g.afterAnswers(changes)})
	}
	for _, k := range d.list {
		r.Debezium = append(r.Debezium, stats.Row{
			Name: fmt.Sprintf("commit → stored by Debezium, poll.interval.ms=%d", k.poll), Summary: on(k.topic),
		})
	}
	var put []time.Duration
	for _, c := range changes {
		if c.err != nil {
			r.Failed++
			r.Failure = c.err.Error()
			continue
		}
		r.Changes++
		put = append(put, c.answered.Sub(c.due))
	}
	r.Put, r.Look, r.Missing = stats.Of(put), stats.Of(looks), len(missing)+r.Changes-len(commits)
	return nil
}

// commitTimes asks PostgreSQL when the changes were committed, by version.
func commitTimes(ctx context.Context, s *system.System, changes []*change) (map[int64]time.Time, error) {
	versions := make([]int64, 0, len(changes))
	for _, c := range changes {
		if c.err == nil {
			versions = append(versions, c.version)
		}
	}
	db, err := s.Database(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close(context.WithoutCancel(ctx)) }()
	rows, err := db.Query(ctx, `SELECT version, pg_xact_commit_timestamp(xmin) FROM outbox WHERE version = ANY($1)`, versions)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	commits := map[int64]time.Time{}
	for rows.Next() {
		var version int64
		var at time.Time
		if err := rows.Scan(&version, &at); err != nil {
			return nil, fmt.Errorf("commit times: %w", err)
		}
		commits[version] = at
	}
	return commits, rows.Err()
}

// object is a catalogue object of this load test.
type object = estate.Object
