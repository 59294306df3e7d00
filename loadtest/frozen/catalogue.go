package frozen

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/loadtest/system"
)

// modes are the failure modes, each with a tenant and a rule of its own.
var modes = [...]string{"open", "closed", "local"}

func name(mode string) string { return "loadtest-frozen-" + mode }

// A catalogue is what was made for the run, in that order.
type catalogue struct {
	admin *estate.Admin
	made  [][2]string // kind and id
}

// makeCatalogue puts in what the load needs and waits until every gateway
// decides by it.
func makeCatalogue(ctx context.Context, s *system.System) (*catalogue, error) {
	c := &catalogue{admin: s.Admin()}
	err := c.make(ctx)
	for _, d := range s.Deciders() {
		if err == nil {
			err = await(ctx, d)
		}
	}
	if err != nil {
		return nil, errors.Join(err, c.remove(context.WithoutCancel(ctx)))
	}
	return c, nil
}

func (c *catalogue) make(ctx context.Context) error {
	for _, mode := range modes {
		id := name(mode)
		limit, burst := 1_000_000, 1_000_000
		if mode == "local" {
			limit, burst = 60*LocalRate, LocalBurst
		}
		for _, o := range []struct {
			kind string
			body estate.Object
		}{
			{"tenants", estate.Object{"name": "Load test", "zone": "UTC", "currency": "USD"}},
			{"rules", estate.Object{
				"name": "load test", "mode": "enforce", "kind": "rate", "algorithm": "gcra", "subject": []string{"tenant"}, "match": estate.Object{"tenant": id},
				"limit": limit, "window": "60s", "burst": burst, "meter": "api-calls", "on_failure": mode,
			}},
		} {
			if _, _, err := c.admin.Put(ctx, o.kind, id, "", o.body); err != nil {
				return err
			}
			c.made = append(c.made, [2]string{o.kind, id})
		}
	}
	return nil
}

// remove deletes what was made, last first.
func (c *catalogue) remove(ctx context.Context) error {
	var errs []error
	for i := len(c.made) - 1; i >= 0; i-- {
		if err := c.admin.Delete(ctx, c.made[i][0], c.made[i][1]); !errors.Is(err, estate.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// question is one of a mode's tenant.
func question(mode string) []byte {
	b, err := json.Marshal(estate.Object{"tenant": name(mode)})
	if err != nil { // strings always marshal
		return nil
	}
	return b
}

// await waits until a gateway decides by the rules of every mode.
func await(ctx context.Context, d *estate.Decider) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for _, mode := range modes {
		for {
			got, err := d.Decide(ctx, estate.Object{"tenant": name(mode), "cost": 0})
			if err == nil && len(got.Limits) > 0 {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s does not know the rule of %s: %w", d.URL, name(mode), err)
			case <-tick.C:
			}
		}
	}
	return nil
}
