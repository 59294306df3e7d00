package httpapi

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"penstock.dev/services/rule-admin/catalog"
)

func encodeJSON(_ context.Context, w http.ResponseWriter, response any) error {
	return writeJSON(w, http.StatusOK, response)
}

// writeJSON writes nothing when it fails, so that the error can be answered.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	writeText(w, status, text)
	return nil
}

// writeText writes what is JSON.
func writeText(w http.ResponseWriter, status int, text []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // a client that is gone is nobody's error
}

func encodeObject(_ context.Context, w http.ResponseWriter, response any) error {
	f := response.(found) // get made it
	w.Header().Set("ETag", etag(f.object.Version))
	if f.unchanged {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	return writeJSON(w, http.StatusOK, f.object)
}

// noneMatch reports whether a list of entity tags has the version's.
func noneMatch(header string, version int64) bool {
	for tag := range strings.SplitSeq(header, ",") {
		tag = strings.TrimSpace(tag)
		if tag == "*" || strings.TrimPrefix(tag, "W/") == etag(version) {
			return true
		}
	}
	return false
}

func encodePut(ctx context.Context, w http.ResponseWriter, response any) error {
	r := response.(catalog.Result) // put made it
	w.Header().Set("ETag", etag(r.Object.Version))
	status := http.StatusOK
	if r.Created {
		status = http.StatusCreated
		w.Header().Set("Location", (&url.URL{Path: callOf(ctx).path}).EscapedPath())
	}
	text, err := r.Object.MarshalJSON() // json.Marshal would read it again
	if err != nil {
		return err
	}
	if r.Secret != "" {
		secret, err := json.Marshal(r.Secret)
		if err != nil {
			return err
		}
		text = slices.Concat(text[:len(text)-1], []byte(`,"secret":`), secret, []byte{'}'})
	}
	writeText(w, status, text)
	return nil
}

func encodeNothing(_ context.Context, w http.ResponseWriter, _ any) error {
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// encodeAudit writes JSON, or CSV with the next cursor in a Link header.
func encodeAudit(ctx context.Context, w http.ResponseWriter, response any) error {
	p := response.(auditPage) // audit made it
	w.Header().Set("Vary", "Accept")
	if !p.csv {
		return writeJSON(w, http.StatusOK, p)
	}
	if p.NextCursor != "" {
		q := url.Values{"cursor": {p.NextCursor}}
		w.Header().Set("Link", "<"+callOf(ctx).path+"?"+q.Encode()+`>; rel="next"`)
	}
	w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	w.Header().Set("Content-Disposition", `attachment; filename="audit.csv"`)
	out := csv.NewWriter(w)
	out.UseCRLF = true
	_ = out.Write([]string{"id", "at", "actor", "role", "action", "kind", "object_id", "before", "after", "request_id"})
	for _, e := range p.Items {
		_ = out.Write([]string{
			e.ID, e.At.Format(time.RFC3339Nano), cell(e.Actor), cell(e.Role), string(e.Action), string(e.Kind), cell(e.ObjectID),
			cell(document(e.Before)), cell(document(e.After)), cell(e.RequestID),
		})
	}
	out.Flush() // a client that is gone is nobody's error
	return nil
}

func document(text json.RawMessage) string {
	if string(text) == "null" {
		return ""
	}
	return string(text)
}

// cell keeps a spreadsheet from taking a text for a formula.
func cell(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r", rune(s[0])) {
		return "'" + s
	}
	return s
}

// wantsCSV reports whether the client asks for CSV and not for JSON.
func wantsCSV(r *http.Request) bool {
	for _, accept := range r.Header.Values("Accept") {
		for item := range strings.SplitSeq(accept, ",") {
			switch media, _, _ := strings.Cut(item, ";"); strings.ToLower(strings.TrimSpace(media)) {
			case "text/csv":
				return true
			case "application/json":
				return false
			}
		}
	}
	return false
}
