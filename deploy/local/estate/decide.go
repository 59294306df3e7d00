package estate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// A Decision is the part of a gateway's answer that the demo and the seeding
// look at.
type Decision struct {
	Outcome      string  `json:"outcome"`
	Status       int     `json:"status"`
	Code         string  `json:"code"`
	RetryAfter   int64   `json:"retry_after_seconds"` // 0: no wait helps, or it passed
	Degraded     bool    `json:"degraded"`
	RulesVersion int64   `json:"rules_version"`
	DecisionID   string  `json:"decision_id"`
	Receipt      string  `json:"receipt"`
	Limits       []Limit `json:"limits"`
}

// A Limit is what a rule that won its group says in a decision.
type Limit struct {
	RuleID    string    `json:"rule_id"`
	Mode      string    `json:"mode"`
	Passed    bool      `json:"passed"`
	Limit     int64     `json:"limit"`
	Remaining int64     `json:"remaining"`
	Consumed  int64     `json:"consumed"` // of a quota or a wallet, like the next
	Refunded  int64     `json:"refunded"`
	Balance   int64     `json:"balance"`    // of a wallet
	PeriodEnd time.Time `json:"period_end"` // of a quota or a renewable wallet
}

// Limit returns the limit of a rule in the decision; ok is false when the rule
// is not among the winners.
func (d Decision) Limit(rule string) (limit int64, ok bool) {
	for _, l := range d.Limits {
		if l.RuleID == rule {
			return l.Limit, true
		}
	}
	return 0, false
}

// Balance returns what a wallet holds after the decision; ok is false when its
// rule is not among the winners.
func (d Decision) Balance(rule string) (balance int64, ok bool) {
	for _, l := range d.Limits {
		if l.RuleID == rule {
			return l.Balance, true
		}
	}
	return 0, false
}

// A Decider asks one gateway for decisions, as a trusted caller does.
type Decider struct {
	URL   string // of the gateway
	Token string // decision token
	http  http.Client
}

// Deciders returns one for each gateway of the estate.
func (e *Estate) Deciders() []*Decider {
	var ds []*Decider
	for _, name := range []string{"GATEWAY_URL", "GATEWAY_URL_2"} {
		if url := e.Env[name]; url != "" {
			ds = append(ds, &Decider{URL: url, Token: e.Env[decisionToken], http: http.Client{Timeout: 10 * time.Second}})
		}
	}
	return ds
}

// Decide sends a decision request. Cost 0 in it asks and charges nothing.
func (d *Decider) Decide(ctx context.Context, question Object) (Decision, error) {
	var got Decision
	return got, d.post(ctx, "/v1/decisions", question, &got)
}

// Refund gives back all that is left of a decision.
func (d *Decider) Refund(ctx context.Context, of Decision) error {
	return d.post(ctx, "/v1/decisions/"+of.DecisionID+"/refund", Object{"receipt": of.Receipt}, &struct{}{})
}

func (d *Decider) post(ctx context.Context, path string, body Object, answer any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.URL+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+d.Token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := d.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("POST %s: %s: %s", path, resp.Status, bytes.TrimSpace(text))
	}
	return json.Unmarshal(text, answer)
}

// enforced bounds the wait for a catalogue to reach the gateways.
const enforced = 15 * time.Second

// awaitKey waits until every gateway knows an API key. The key was made last
// and records arrive in order, so by then all else has arrived too.
func (e *Estate) awaitKey(ctx context.Context, secret string) error {
	ctx, cancel := context.WithTimeout(ctx, enforced)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for _, d := range e.Deciders() {
		var last error
		for known := false; !known; {
			got, err := d.Decide(ctx, Object{"api_key": secret, "service": "search", "method": http.MethodGet, "path": "/v1/search", "cost": 0})
			switch {
			case err == nil && got.Status != http.StatusUnauthorized:
				known = true
				continue
			case err == nil:
				err = fmt.Errorf("it answers %+v", got)
			}
			if ctx.Err() == nil {
				last = err
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("the sample catalogue has not reached %s within %v: %w", d.URL, enforced, last)
			case <-tick.C:
			}
		}
	}
	return nil
}
