package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog"
)

const (
	// maxBody bounds a body, in bytes. The largest object that validates is
	// about half of it.
	maxBody = 64 << 10

	defaultPage  = 100
	maxPage      = 500
	maxUsagePage = 1000
)

type listRequest struct {
	kind  catalog.Kind
	after string
	limit int
}

func decodeList(ctx context.Context, r *http.Request) (any, error) {
	c := callOf(ctx)
	q, err := query(r, "limit", "cursor")
	if err != nil {
		return nil, err
	}
	req := listRequest{kind: c.target.kind}
	if req.limit, err = pageLimit(q, maxPage); err != nil {
		return nil, err
	}
	req.after, err = openIDCursor(listScope(req.kind), q.Get("cursor"))
	return req, err
}

type getRequest struct {
	target      target
	ifNoneMatch string
}

func decodeGet(ctx context.Context, r *http.Request) (any, error) {
	_, err := query(r)
	return getRequest{callOf(ctx).target, strings.Join(r.Header.Values("If-None-Match"), ",")}, err
}

func decodePut(ctx context.Context, r *http.Request) (any, error) {
	c := callOf(ctx)
	if _, err := query(r); err != nil {
		return nil, err
	}
	condition, err := condition(r)
	if err != nil {
		return nil, err
	}
	text, err := body(r)
	if err != nil {
		return nil, err
	}
	return catalog.Put{
		Kind: c.target.kind, ID: c.target.id, Text: text, Condition: condition, Caller: c.caller, RequestID: c.requestID,
	}, nil
}

// body returns the body, all of it.
func body(r *http.Request) ([]byte, error) {
	text, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, fmt.Errorf("%w: want at most %d bytes", errTooLarge, large.Limit)
	case err != nil:
		return nil, fmt.Errorf("%w: the body ends early", catalog.ErrMalformed)
	}
	return text, nil
}

func decodeDelete(ctx context.Context, r *http.Request) (any, error) {
	c := callOf(ctx)
	if _, err := query(r); err != nil {
		return nil, err
	}
	condition, err := condition(r)
	return catalog.Removal{
		Kind: c.target.kind, ID: c.target.id, Condition: condition, Caller: c.caller, RequestID: c.requestID,
	}, err
}

// auditRequest is a page of the audit, as JSON or as CSV.
type auditRequest struct {
	search catalog.Search
	csv    bool
}

func decodeAudit(_ context.Context, r *http.Request) (any, error) {
	q, err := query(r, "limit", "cursor", "kind", "object_id", "actor")
	if err != nil {
		return nil, err
	}
	req := auditRequest{csv: wantsCSV(r), search: catalog.Search{
		Kind: catalog.Kind(q.Get("kind")), ObjectID: q.Get("object_id"), Actor: q.Get("actor"),
	}}
	if q.Has("kind") && !req.search.Kind.Known() && req.search.Kind != catalog.KindTopUp {
		return nil, fault(catalog.ErrInvalid, "kind", "is %q, which is no kind", clip(q.Get("kind")))
	}
	var faults rule.Faults
	if req.search.ObjectID != "" {
		faults.ID("object_id", req.search.ObjectID)
	}
	faults.Text("actor", req.search.Actor, 0, rule.MaxText)
	if len(faults) > 0 {
		return nil, &catalog.FaultError{Err: catalog.ErrInvalid, Faults: faults}
	}
	if req.search.Most, err = pageLimit(q, maxPage); err != nil {
		return nil, err
	}
	req.search.Before, err = openRevisionCursor(auditScope(req.search), q.Get("cursor"))
	return req, err
}

// query returns the parameters, each given at most once. Unknown ones are
// refused.
func query(r *http.Request, known ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("%w: query: %w", catalog.ErrMalformed, err)
	}
	for name, values := range q {
		switch {
		case !slices.Contains(known, name):
			return nil, fault(catalog.ErrMalformed, clip(name), "is no query parameter here")
		case len(values) > 1:
			return nil, fault(catalog.ErrMalformed, name, "is there twice")
		}
	}
	return q, nil
}

func pageLimit(q url.Values, most int) (int, error) {
	if !q.Has("limit") {
		return defaultPage, nil
	}
	n, err := strconv.Atoi(q.Get("limit"))
	if err != nil || n < 1 || n > most {
		return 0, fault(catalog.ErrInvalid, "limit", "is %q, want 1 to %d", clip(q.Get("limit")), most)
	}
	return n, nil
}

// condition reads If-Match and If-None-Match of a request that writes. A tag
// that is not one of ours matches nothing.
func condition(r *http.Request) (catalog.Condition, error) {
	var c catalog.Condition
	for tag := range tags(r, "If-Match") {
		c.Given = true
		if tag == "*" {
			c.Any = true
		} else if v, ok := version(tag); ok {
			c.Versions = append(c.Versions, v)
		} else {
			callOf(r.Context()).oddTag = true
		}
	}
	for tag := range tags(r, "If-None-Match") {
		if tag != "*" {
			return c, fault(catalog.ErrMalformed, "If-None-Match", "is %q, want * on a request that writes", clip(tag))
		}
		c.Absent = true
	}
	return c, nil
}

// tags yields the entity tags of a header.
func tags(r *http.Request, header string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for _, line := range r.Header.Values(header) {
			for tag := range strings.SplitSeq(line, ",") {
				if !yield(strings.TrimSpace(tag)) {
					return
				}
			}
		}
	}
}

func etag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

// version is the version that one of our tags names.
func version(tag string) (int64, bool) {
	if len(tag) < 3 || tag[0] != '"' || tag[len(tag)-1] != '"' {
		return 0, false
	}
	v, err := strconv.ParseInt(tag[1:len(tag)-1], 10, 64)
	return v, err == nil && etag(v) == tag
}
