package estate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Admin is a client of rule-admin's REST interface, as a script would be one.
// It is safe for concurrent use.
type Admin struct {
	URL   string // without a trailing slash
	Token string // bearer token
	http  http.Client
}

// Admin returns a client of this estate's rule-admin that may change things.
func (e *Estate) Admin() *Admin {
	return &Admin{URL: e.Env["ADMIN_URL"], Token: e.Env[adminToken], http: http.Client{Timeout: 10 * time.Second}}
}

// An Object is a catalogue object as JSON.
type Object map[string]any

// ErrNotFound reports an object that does not exist.
var ErrNotFound = errors.New("no such object")

// Get returns the object of that kind (as in the path, e.g. "api-keys") and its
// ETag. The error wraps ErrNotFound when there is none.
func (a *Admin) Get(ctx context.Context, kind, id string) (Object, string, error) {
	return a.do(ctx, http.MethodGet, kind, id, "", nil)
}

// Put creates an object, or replaces the one that ifMatch names (an ETag, or
// "*"). It returns the answer and the new ETag.
func (a *Admin) Put(ctx context.Context, kind, id, ifMatch string, o Object) (Object, string, error) {
	return a.do(ctx, http.MethodPut, kind, id, ifMatch, o)
}

// Delete removes an object.
func (a *Admin) Delete(ctx context.Context, kind, id string) error {
	_, _, err := a.do(ctx, http.MethodDelete, kind, id, "", nil)
	return err
}

// TopUp grants units to a tenant's prepaid wallet, once for each key. It returns
// the answer.
func (a *Admin) TopUp(ctx context.Context, tenant, meter, key string, units int64) (Object, error) {
	o, _, err := a.send(ctx, http.MethodPost, "/v1/tenants/"+tenant+"/topups", "Idempotency-Key", key, Object{"meter": meter, "units": units})
	return o, err
}

func (a *Admin) do(ctx context.Context, method, kind, id, ifMatch string, body Object) (Object, string, error) {
	return a.send(ctx, method, "/v1/"+kind+"/"+id, "If-Match", ifMatch, body)
}

// send sends a header unless it is empty, and returns the answer and its ETag.
func (a *Admin) send(ctx context.Context, method, path, header, value string, body Object) (Object, string, error) {
	var content io.Reader = http.NoBody
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, "", err
		}
		content = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.URL+path, content)
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Authorization", "Bearer "+a.Token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if value != "" {
		req.Header.Set(header, value)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, "", err
	}
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return nil, "", fmt.Errorf("%s %s: %w", method, path, ErrNotFound)
	case resp.StatusCode >= 300:
		return nil, "", fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(answer))
	case len(answer) == 0:
		return nil, "", nil
	}
	var o Object
	if err := json.Unmarshal(answer, &o); err != nil {
		return nil, "", fmt.Errorf("%s %s: %w", method, path, err)
	}
	return o, resp.Header.Get("ETag"), nil
}
