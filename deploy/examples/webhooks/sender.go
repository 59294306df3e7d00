package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An endpoint is who is told.
type endpoint struct {
	ID      string   `json:"id"`      // 1-64 of a-z 0-9 -; names its directory
	URL     string   `json:"url"`     // https, or http for trying
	Secrets []string `json:"secrets"` // "whsec_" and base64 of 24 to 64 bytes; while one is being replaced, both
	Tenants []string `json:"tenants"` // whose events it gets; empty: everybody's
}

func (e *endpoint) wants(tenant string) bool {
	return len(e.Tenants) == 0 || slices.Contains(e.Tenants, tenant)
}

var ids = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

func readEndpoints(file string) ([]*endpoint, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var endpoints []*endpoint
	if err := json.Unmarshal(text, &endpoints); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	seen := map[string]bool{}
	for i, e := range endpoints {
		u, err := url.Parse(e.URL)
		if !ids.MatchString(e.ID) || seen[e.ID] || err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || len(e.Secrets) == 0 {
			return nil, fmt.Errorf("%s: endpoint %d: want an id of its own, a URL and a secret", file, i+1)
		}
		seen[e.ID] = true
		for _, s := range e.Secrets {
			if _, err := key(s); err != nil {
				return nil, fmt.Errorf("%s: endpoint %s: %w", file, e.ID, err)
			}
		}
	}
	return endpoints, nil
}

// key is the secret without its prefix.
func key(secret string) ([]byte, error) {
	text, ok := strings.CutPrefix(secret, "whsec_")
	k, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(k) < 24 || len(k) > 64 {
		return nil, errors.New(`a secret is not "whsec_" and base64 of 24 to 64 bytes`)
	}
	return k, nil
}

// sign returns the header webhook-signature: for each secret "v1," and the base64 of
// the HMAC-SHA256 of "<id>.<timestamp>.<body>".
func sign(secrets []string, id string, at time.Time, body []byte) (string, error) {
	var signatures []string
	for _, s := range secrets {
		k, err := key(s)
		if err != nil {
			return "", err
		}
		mac := hmac.New(sha256.New, k)
		_, _ = fmt.Fprintf(mac, "%s.%d.%s", id, at.Unix(), body) // never fails
		signatures = append(signatures, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	return strings.Join(signatures, " "), nil
}

// schedule is how long after the last attempt the next one is made. The first is
// made at once; after the last the delivery has failed.
var schedule = []time.Duration{
	0, 5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
}

const (
	answersWithin = 20 * time.Second
	lookEvery     = 500 * time.Millisecond
	forgetEvery   = time.Hour
)

// A sender sends to one endpoint, one delivery at a time.
type sender struct {
	endpoint *endpoint
	queue    *queue
	client   *http.Client
	log      *slog.Logger
}

func newSender(e *endpoint, q *queue, log *slog.Logger) *sender {
	return &sender{e, q, &http.Client{
		Timeout: answersWithin,
		// A redirect would take the signed body to whoever the endpoint names.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, log}
}

// run sends until ctx ends.
func (s *sender) run(ctx context.Context) {
	look, forget := time.NewTicker(lookEvery), time.NewTicker(forgetEvery)
	defer look.Stop()
	defer forget.Stop()
	for {
		if err := s.round(ctx, time.Now); err != nil && ctx.Err() == nil {
			s.log.Error("queue cannot be worked on; trying again", "endpoint", s.endpoint.ID, "error", err)
		}
		select {
		case <-look.C:
		case <-forget.C:
			if err := s.queue.forget(time.Now()); err != nil {
				s.log.Warn("old deliveries cannot be removed", "endpoint", s.endpoint.ID, "error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// round makes one attempt for each delivery that is due.
func (s *sender) round(ctx context.Context, now func() time.Time) error {
	if s.queue.disabled() {
		return nil
	}
	due, err := s.queue.due(now())
	if err != nil {
		return err
	}
	for _, d := range due {
		if err := s.attempt(ctx, d, now); err != nil || s.queue.disabled() {
			return err
		}
	}
	return nil
}

// attempt sends a delivery once and notes what became of it.
func (s *sender) attempt(ctx context.Context, d *delivery, now func() time.Time) error {
	status, wait, err := s.post(ctx, d, now())
	switch {
	case ctx.Err() != nil:
		return ctx.Err() // not the endpoint's fault
	case err == nil && status >= 200 && status < 300:
		return s.queue.finish(d, done)
	case status == http.StatusGone:
		s.log.Warn("endpoint is gone and is sent nothing more", "endpoint", s.endpoint.ID)
		return s.queue.disable("answered 410 to " + d.ID)
	}
	d.Attempts++
	d.Last = "status " + strconv.Itoa(status)
	if err != nil {
		d.Last = err.Error()
	}
	if d.Attempts >= len(schedule) {
		s.log.Error("delivery has failed", "endpoint", s.endpoint.ID, "id", d.ID, "last", d.Last)
		return errors.Join(s.queue.store(d), s.queue.finish(d, failed))
	}
	d.Next = now().Add(max(schedule[d.Attempts], wait))
	s.log.Warn("delivery is tried again", "endpoint", s.endpoint.ID, "id", d.ID, "attempts", d.Attempts, "last", d.Last, "next", d.Next)
	return s.queue.store(d)
}

// post sends a delivery and returns the status of the answer, and how long it asks to
// be left alone.
func (s *sender) post(ctx context.Context, d *delivery, now time.Time) (status int, wait time.Duration, err error) {
	signature, err := sign(s.endpoint.Secrets, d.ID, now, d.Body)
	if err != nil {
		return 0, 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.endpoint.URL, bytes.NewReader(d.Body))
	if err != nil {
		return 0, 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("webhook-id", d.ID) // the same at every attempt: receivers drop repeats by it
	req.Header.Set("webhook-timestamp", strconv.FormatInt(now.Unix(), 10))
	req.Header.Set("webhook-signature", signature)
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, 0, err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // or the connection cannot be used again
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))    // a date is not honoured
	return resp.StatusCode, time.Duration(min(max(seconds, 0), 86_400)) * time.Second, resp.Body.Close()
}
