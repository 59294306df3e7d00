package propagation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/loadtest/pace"
	"penstock.dev/loadtest/system"
)

// ruleCount is how many rules are changed in turn, each of a tenant of its own.
const ruleCount = 20

// A ruleSet is the rules that are changed.
type ruleSet struct {
	admin *estate.Admin
	ids   []string // of tenants and of their rules alike
	limit int64    // of the next change; unique to it
}

func makeRules(ctx context.Context, s *system.System) (*ruleSet, error) {
	r := &ruleSet{admin: s.Admin(), limit: 1_000_000}
	for i := range ruleCount {
		id := fmt.Sprintf("loadtest-propagation-%02d", i)
		r.ids = append(r.ids, id)
		err := r.put(ctx, "tenants", id, object{"name": "Load test", "zone": "Europe/Istanbul", "currency": "USD"})
		if err == nil {
			err = r.put(ctx, "rules", id, rule(id, r.limit))
		}
		if err != nil {
			return nil, errors.Join(err, r.remove(context.WithoutCancel(ctx)))
		}
	}
	return r, nil
}

func rule(tenant string, limit int64) object {
	return object{
		"name": "load test", "enabled": true, "mode": "enforce", "kind": "rate", "algorithm": "gcra",
		"subject": []string{"tenant"}, "match": object{"tenant": tenant},
		"limit": limit, "window": "60s", "burst": 1000, "meter": "api-calls", "on_failure": "open",
	}
}

// put creates or replaces an object.
func (r *ruleSet) put(ctx context.Context, kind, id string, o object) error {
	tag := "*"
	_, _, err := r.admin.Get(ctx, kind, id)
	if errors.Is(err, estate.ErrNotFound) {
		tag, err = "", nil
	}
	if err == nil {
		_, _, err = r.admin.Put(ctx, kind, id, tag, o)
	}
	return err
}

func (r *ruleSet) remove(ctx context.Context) error {
	var errs []error
	for _, kind := range []string{"rules", "tenants"} {
		for _, id := range r.ids {
			if err := r.admin.Delete(ctx, kind, id); !errors.Is(err, estate.ErrNotFound) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// A change is one change of one rule.
type change struct {
	rule     string
	limit    int64
	due      time.Time
	answered time.Time // by rule-admin
	version  int64
	err      error
}

// change changes one rule after the other by the schedule.
func (r *ruleSet) change(ctx context.Context, s pace.Schedule) []*change {
	changes := make([]*change, s.Count())
	for i := range changes {
		r.limit++
		changes[i] = &change{rule: r.ids[i%len(r.ids)], limit: r.limit, err: errNotSent}
	}
	pace.Run(ctx, s, func(i int, due time.Time) {
		c := changes[i]
		c.due = due
		c.version, c.err = r.set(ctx, c.rule, c.limit)
		c.answered = time.Now()
	})
	return changes
}

var errNotSent = errors.New("not sent")

// set gives a rule another limit and returns the version of the change.
func (r *ruleSet) set(ctx context.Context, id string, limit int64) (int64, error) {
	answer, _, err := r.admin.Put(ctx, "rules", id, "*", rule(id, limit))
	if err != nil {
		return 0, err
	}
	version, ok := answer["version"].(float64) // exact: below 2^53
	if !ok {
		return 0, fmt.Errorf("rule-admin answers without a version: %v", answer)
	}
	return int64(version), nil
}
