package decisions

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"penstock.dev/deploy/local/estate"
)

// charged is what the monthly quotas of all tenants have consumed.
func (c *catalogue) charged(ctx context.Context) (int64, error) {
	var sum int64
	for i := range tenants {
		a, err := c.peek(ctx, c.deciders[0], tenant(i))
		if err != nil {
			return 0, err
		}
		sum += a.consumed(tenant(i) + "-month")
	}
	return sum, nil
}

// awaitGateways waits until every gateway decides by all rules of every tenant.
func (c *catalogue) awaitGateways(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for _, d := range c.deciders {
		for i := range tenants {
			for {
				a, err := c.peek(ctx, d, tenant(i))
				if err == nil && len(a.Limits) == len(rules("")) {
					break
				}
				select {
				case <-ctx.Done():
					return fmt.Errorf("%s does not know the rules of %s: %d of them, %w", d.URL, tenant(i), len(a.Limits), err)
				case <-tick.C:
				}
			}
		}
	}
	return nil
}

// An answer is the part of a decision that is counted with.
type answer struct {
	Limits []struct {
		RuleID   string `json:"rule_id"`
		Consumed int64  `json:"consumed"`
	} `json:"limits"`
}

func (a answer) consumed(rule string) int64 {
	for _, l := range a.Limits {
		if l.RuleID == rule {
			return l.Consumed
		}
	}
	return 0
}

// peek asks for a decision of cost 0.
func (c *catalogue) peek(ctx context.Context, d *estate.Decider, tenant string) (answer, error) {
	var a answer
	body, err := json.Marshal(object{
		"tenant": tenant, "user": "u00", "service": service, "method": http.MethodGet, "path": path, "client_ip": "192.0.2.7", "cost": 0,
	})
	if err != nil {
		return a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.URL+"/v1/decisions", bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("Authorization", "Bearer "+d.Token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return a, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("peek: %s: %s", resp.Status, text)
	}
	if err != nil {
		return a, err
	}
	return a, json.Unmarshal(text, &a)
}
