package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"penstock.dev/loadtest/metrics"
)

// Metrics of a gateway's usage events.
const (
	recordedMetric     = "penstock_gateway_usage_recorded_total"
	acknowledgedMetric = "penstock_gateway_usage_acknowledged_total"
)

// A told is what a gateway says of itself at one time.
type told struct {
	runtime                *Runtime
	recorded, acknowledged float64 // usage events: made, and with Kafka
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
	var errs [3]error
	t.runtime, errs[0] = runtimeOf(page)
	t.recorded, errs[1] = page.Value(recordedMetric)
	t.acknowledged, errs[2] = page.Value(acknowledgedMetric)
	return t, errors.Join(errs[:]...)
}

// awaitEvents waits until Kafka has an event of every decision since before,
// and so until none of them is work while somebody else is measured. It returns
// what is wrong.
func (c *contender) awaitEvents(ctx context.Context, before *told, decisions int64) (fault string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		now, err := c.told(ctx)
		if err != nil {
			return "", err
		}
		made, have := int64(now.recorded-before.recorded), int64(now.acknowledged-before.acknowledged)
		if made == decisions && have >= decisions { // what was sent twice may count twice
			return "", nil
		}
		select {
		case <-ctx.Done():
			return fmt.Sprintf("%d decisions, %d usage events, and Kafka has %d of them", decisions, made, have), nil
		case <-tick.C:
		}
	}
}
