package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

const contentType = "application/vnd.schemaregistry.v1+json"

// maxBody bounds a request, in bytes.
const maxBody = 4 << 20

// Handler returns the REST API.
func (r *Registry) Handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, h := range map[string]func(*http.Request) (any, error){
		"GET /{$}":                                          func(*http.Request) (any, error) { return struct{}{}, nil },
		"GET /schemas":                                      r.getSchemas,
		"GET /schemas/types":                                func(*http.Request) (any, error) { return []string{"AVRO"}, nil },
		"GET /schemas/ids/{id}":                             r.getSchema,
		"GET /schemas/ids/{id}/schema":                      r.getSchemaText,
		"GET /schemas/ids/{id}/subjects":                    r.getSchemaSubjects,
		"GET /schemas/ids/{id}/versions":                    r.getSchemaVersions,
		"GET /subjects":                                     r.getSubjects,
		"POST /subjects/{subject}":                          r.postSubject,
		"DELETE /subjects/{subject}":                        r.deleteSubjectHTTP,
		"GET /subjects/{subject}/versions":                  r.getVersions,
		"POST /subjects/{subject}/versions":                 r.postVersion,
		"GET /config":                                       r.getConfig,
		"PUT /config":                                       r.putConfig,
		"DELETE /config":                                    r.deleteConfig,
		"GET /config/{subject}":                             r.getConfig,
		"PUT /config/{subject}":                             r.putConfig,
		"DELETE /config/{subject}":                          r.deleteConfig,
		"GET /mode":                                         r.getMode,
		"GET /mode/{subject}":                               r.getMode,
		"PUT /mode":                                         r.putMode,
		"PUT /mode/{subject}":                               r.putMode,
		"GET /contexts":                                     func(*http.Request) (any, error) { return []string{"."}, nil },
		"GET /subjects/{subject}/versions/{version}":        r.getVersion,
		"DELETE /subjects/{subject}/versions/{version}":     r.deleteVersionHTTP,
		"GET /subjects/{subject}/versions/{version}/schema": r.getVersionText,
		"GET /subjects/{subject}/versions/{version}/referencedby":   r.getReferrers,
		"POST /compatibility/subjects/{subject}/versions":           r.postCompatibility,
		"POST /compatibility/subjects/{subject}/versions/{version}": r.postCompatibility,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, q *http.Request) {
			q.Body = http.MaxBytesReader(w, q.Body, maxBody)
			answer, err := h(q)
			r.answer(w, q, answer, err)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		r.answer(w, q, nil, &Error{http.StatusNotFound, http.StatusNotFound, "HTTP 404 Not Found"})
	})
	return mux
}

// raw is an answer that is JSON already.
type raw string

func (r *Registry) answer(w http.ResponseWriter, q *http.Request, answer any, err error) {
	status := http.StatusOK
	if err != nil {
		var e *Error
		if !errors.As(err, &e) {
			e = &Error{http.StatusInternalServerError, 50001, err.Error()}
		}
		status = e.Status
		answer = map[string]any{"error_code": e.Code, "message": e.Message}
		r.log.Info("refused", "method", q.Method, "path", q.URL.Path, "status", e.Status, "code", e.Code, "reason", e.Message)
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	if text, ok := answer.(raw); ok {
		_, _ = io.WriteString(w, string(text))
		return
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		r.log.Debug("answer not sent", "error", err.Error())
	}
}

// flag reads a query parameter that is true or absent.
func flag(q *http.Request, name string) bool {
	return strings.EqualFold(q.URL.Query().Get(name), "true")
}

// body decodes a request. Fields it does not know are ignored, as Confluent's
// registry does; what it knows and does not do, it refuses.
func body(q *http.Request, v any) error {
	if err := json.NewDecoder(q.Body).Decode(v); err != nil {
		return &Error{http.StatusBadRequest, http.StatusBadRequest, fmt.Sprintf("Unrecognized request body: %v", err)}
	}
	return nil
}

type schemaRequest struct {
	Schema     string          `json:"schema"`
	Type       string          `json:"schemaType"`
	References []Reference     `json:"references"`
	ID         int             `json:"id"`
	Version    int             `json:"version"`
	Metadata   json.RawMessage `json:"metadata"`
	RuleSet    json.RawMessage `json:"ruleSet"`
}

// schemaBody decodes a schema and refuses what this registry does not do.
func schemaBody(q *http.Request) (schemaRequest, error) {
	var in schemaRequest
	if err := body(q, &in); err != nil {
		return in, err
	}
	given := func(m json.RawMessage) bool { return len(m) > 0 && string(m) != "null" }
	switch {
	case in.Type != "" && in.Type != "AVRO":
		return in, errInvalidSchema(fmt.Errorf("type %s is not served, only AVRO", in.Type))
	case in.Schema == "":
		return in, unprocessable(42201, "Empty schema")
	case given(in.Metadata) || given(in.RuleSet):
		return in, unprocessable(42210, "metadata and rule sets are not served by the development registry")
	}
	return in, nil
}

func (r *Registry) postVersion(q *http.Request) (any, error) {
	in, err := schemaBody(q)
	if err != nil {
		return nil, err
	}
	subject := q.PathValue("subject")
	if in.ID > 0 || in.Version > 0 {
		return nil, unprocessable(42205, "Subject %s is not in import mode", subject)
	}
	id, err := r.Register(q.Context(), subject, in.Schema, in.References)
	return map[string]int{"id": id}, err
}

func (r *Registry) postSubject(q *http.Request) (any, error) {
	in, err := schemaBody(q)
	if err != nil {
		return nil, err
	}
	v, err := r.lookup(q.Context(), q.PathValue("subject"), in.Schema, in.References, flag(q, "deleted"))
	if err != nil {
		return nil, err
	}
	return shown(v), nil
}

func (r *Registry) postCompatibility(q *http.Request) (any, error) {
	in, err := schemaBody(q)
	if err != nil {
		return nil, err
	}
	faults, err := r.compatible(q.Context(), q.PathValue("subject"), q.PathValue("version"), in.Schema, in.References)
	if err != nil {
		return nil, err
	}
	out := map[string]any{"is_compatible": len(faults) == 0}
	if flag(q, "verbose") {
		out["messages"] = append([]string{}, faults...)
	}
	return out, nil
}

// A versionAnswer is a version as the API shows it.
type versionAnswer struct {
	Subject    string      `json:"subject"`
	Version    int         `json:"version"`
	ID         int         `json:"id"`
	References []Reference `json:"references,omitempty"`
	Schema     string      `json:"schema"`
}

func shown(v *Version) versionAnswer {
	return versionAnswer{v.Subject, v.Version, v.ID, v.References, v.Schema}
}

// one finds the version a path names.
func (r *Registry) one(q *http.Request) (v *Version, err error) {
	err = r.beside(func(s *state) error {
		v, err = s.version(q.PathValue("subject"), q.PathValue("version"), flag(q, "deleted"))
		return err
	})
	return v, err
}

func (r *Registry) getVersion(q *http.Request) (any, error) {
	v, err := r.one(q)
	if err != nil {
		return nil, err
	}
	return shown(v), nil
}

func (r *Registry) getVersionText(q *http.Request) (any, error) {
	v, err := r.one(q)
	if err != nil {
		return nil, err
	}
	return raw(v.Schema), nil
}

func (r *Registry) getReferrers(q *http.Request) (any, error) {
	v, err := r.one(q)
	if err != nil {
		return nil, err
	}
	var ids []int
	err = r.beside(func(s *state) error {
		ids = s.referrers(v.Subject, v.Version)
		return nil
	})
	return ids, err
}

func (r *Registry) getVersions(q *http.Request) (any, error) {
	numbers := []int{}
	err := r.beside(func(s *state) error {
		subject := q.PathValue("subject")
		for _, v := range s.versions(subject, flag(q, "deleted")) {
			numbers = append(numbers, v.Version)
		}
		if len(numbers) == 0 {
			return errSubject(subject)
		}
		return nil
	})
	return numbers, err
}

func (r *Registry) getSubjects(q *http.Request) (any, error) {
	subjects := []string{}
	err := r.beside(func(s *state) error {
		for _, v := range s.all(flag(q, "deleted")) {
			if strings.HasPrefix(v.Subject, q.URL.Query().Get("subjectPrefix")) {
				subjects = append(subjects, v.Subject)
			}
		}
		return nil
	})
	return slices.Compact(subjects), err
}

func (r *Registry) getSchemas(q *http.Request) (any, error) {
	schemas := []versionAnswer{}
	err := r.beside(func(s *state) error {
		for _, v := range s.all(flag(q, "deleted")) {
			if !strings.HasPrefix(v.Subject, q.URL.Query().Get("subjectPrefix")) {
				continue
			}
			if n := len(schemas); flag(q, "latestOnly") && n > 0 && schemas[n-1].Subject == v.Subject {
				schemas = schemas[:n-1]
			}
			schemas = append(schemas, shown(v))
		}
		return nil
	})
	return schemas, err
}

// holders returns the versions with the id a path names, at least one.
func (r *Registry) holders(q *http.Request) (vs []*Version, err error) {
	id, err := positive(q.PathValue("id"))
	if err != nil {
		return nil, notFound(http.StatusNotFound, "HTTP 404 Not Found")
	}
	err = r.beside(func(s *state) error {
		if vs = s.byID(id); len(vs) == 0 {
			return errSchema(id)
		}
		return nil
	})
	return vs, err
}

func (r *Registry) getSchema(q *http.Request) (any, error) {
	vs, err := r.holders(q)
	if err != nil {
		return nil, err
	}
	return struct {
		Schema     string      `json:"schema"`
		References []Reference `json:"references,omitempty"`
	}{vs[0].Schema, vs[0].References}, nil
}

func (r *Registry) getSchemaText(q *http.Request) (any, error) {
	vs, err := r.holders(q)
	if err != nil {
		return nil, err
	}
	return raw(vs[0].Schema), nil
}

func (r *Registry) getSchemaSubjects(q *http.Request) (any, error) {
	vs, err := r.holders(q)
	subjects := []string{}
	for _, v := range vs {
		if !v.Deleted || flag(q, "deleted") {
			subjects = append(subjects, v.Subject)
		}
	}
	return slices.Compact(subjects), err
}

func (r *Registry) getSchemaVersions(q *http.Request) (any, error) {
	type at struct {
		Subject string `json:"subject"`
		Version int    `json:"version"`
	}
	vs, err := r.holders(q)
	ats := []at{}
	for _, v := range vs {
		if !v.Deleted || flag(q, "deleted") {
			ats = append(ats, at{v.Subject, v.Version})
		}
	}
	return ats, err
}

func (r *Registry) deleteSubjectHTTP(q *http.Request) (any, error) {
	return r.deleteSubject(q.Context(), q.PathValue("subject"), flag(q, "permanent"))
}

func (r *Registry) deleteVersionHTTP(q *http.Request) (any, error) {
	return r.deleteVersion(q.Context(), q.PathValue("subject"), q.PathValue("version"), flag(q, "permanent"))
}

func (r *Registry) getConfig(q *http.Request) (any, error) {
	l, err := r.levelOf(q.PathValue("subject"), flag(q, "defaultToGlobal"))
	return map[string]Level{"compatibilityLevel": l}, err
}

func (r *Registry) putConfig(q *http.Request) (any, error) {
	var in struct {
		Compatibility string `json:"compatibility"`
	}
	if err := body(q, &in); err != nil {
		return nil, err
	}
	l, err := ParseLevel(in.Compatibility)
	if err != nil {
		return nil, unprocessable(42203, "Invalid compatibility level. Valid values are none, backward, forward, full, backward_transitive, forward_transitive, and full_transitive")
	}
	return map[string]Level{"compatibility": l}, r.setLevel(q.Context(), q.PathValue("subject"), l)
}

func (r *Registry) deleteConfig(q *http.Request) (any, error) {
	l, err := r.resetLevel(q.Context(), q.PathValue("subject"))
	return map[string]Level{"compatibilityLevel": l}, err
}

func (r *Registry) getMode(*http.Request) (any, error) {
	return map[string]string{"mode": "READWRITE"}, nil
}

func (r *Registry) putMode(q *http.Request) (any, error) {
	var in struct {
		Mode string `json:"mode"`
	}
	if err := body(q, &in); err != nil {
		return nil, err
	}
	if !strings.EqualFold(in.Mode, "READWRITE") {
		return nil, unprocessable(42204, "Invalid mode. The development registry is always READWRITE")
	}
	return map[string]string{"mode": "READWRITE"}, nil
}
