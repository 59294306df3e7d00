package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"penstock.dev/loadtest/metrics"
)

// Metrics of a gateway's usage events and leases.
const (
	recordedMetric     = "penstock_gateway_usage_recorded_total"
	acknowledgedMetric = "penstock_gateway_usage_acknowledged_total"
	leasesMetric       = "penstock_gateway_leases"
	unitsMetric        = `penstock_gateway_lease_units_total{what="%s"}`
)

// A told is what a gateway says of itself at one time.
type told struct {
	runtime                *Runtime
	recorded, acknowledged float64 // usage events: made, and with Kafka
	leases                 float64 // of counters
	held                   float64 // units that were leased and of which nobody knows what became
}

// told asks a contender; nil for one that has no metrics.
func (c *contender) told(ctx context.Context) (*told, error) {
	if c.admin == "" {
		return nil, nil
	}
	page, err := metrics.Read(ctx, c.admin)
	if err != nil {
		return nil, err
	}
	t := &told{}
	var errs [4]error
	t.runtime, errs[0] = runtimeOf(page)
	t.recorded, errs[1] = page.Value(recordedMetric)
	t.acknowledged, errs[2] = page.Value(acknowledgedMetric)
	t.leases, errs[3] = page.Value(leasesMetric)
	for what, sign := range map[string]float64{"taken": 1, "spent": -1, "returned": -1, "lost": -1} {
		units, err := page.Value(fmt.Sprintf(unitsMetric, what))
		t.held += sign * units
		errs[3] = errors.Join(errs[3], err)
	}
	return t, errors.Join(errs[:]...)
}

// until asks a contender until what it tells is as wanted, for 20 s at most. It
// returns what it told last, and whether that was so.
func (c *contender) until(ctx context.Context, wanted func(*told) bool) (now *told, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if now, err = c.told(ctx); err != nil || wanted(now) {
			return now, err == nil, err
		}
		select {
		case <-ctx.Done():
			return now, false, nil
		case <-tick.C:
		}
	}
}

// awaitEvents waits until Kafka has an event of every decision since before,
// and so until none of them is work while somebody else is measured. It returns
// what is wrong.
func (c *contender) awaitEvents(ctx context.Context, before *told, decisions int64) (fault string, err error) {
	var made, have int64
	_, ok, err := c.until(ctx, func(now *told) bool {
		made, have = int64(now.recorded-before.recorded), int64(now.acknowledged-before.acknowledged)
		return made == decisions && have >= decisions // what was sent twice may count twice
	})
	if ok || err != nil {
		return "", err
	}
	return fmt.Sprintf("%d decisions, %d usage events, and Kafka has %d of them", decisions, made, have), nil
}

// awaitLeases waits until a gateway holds no units of any counter, which it gives
// back when their time is over: what Redis then holds was sold. It returns what is
// wrong.
func (c *contender) awaitLeases(ctx context.Context) (fault string, err error) {
	now, ok, err := c.until(ctx, func(now *told) bool { return now.leases == 0 && now.held == 0 })
	if ok || err != nil {
		return "", err
	}
	return fmt.Sprintf("%.0f counters are leased, and of %.0f units nobody knows what became", now.leases, now.held), nil
}
