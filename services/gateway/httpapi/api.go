package httpapi

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	_ "embed"
	"errors"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"

	"penstock.dev/services/gateway/decide"
)

// The paths of this API, exactly.
const (
	decisionsPath = "/v1/decisions"
	openAPIPath   = "/v1/openapi.json"
)

const (
	maxBody  = 64 << 10         // bytes of a question
	bodyTime = 10 * time.Second // for it to arrive
)

//go:embed openapi.json
var openAPI []byte

// A Catalogue is what must be known before a decision is asked for. It is one
// revision: a decide.Snapshot.
type Catalogue interface {
	Key(digest [32]byte) (decide.Key, bool)
	// UnknownKey is the answer where there is no such key.
	UnknownKey(q decide.Query, at time.Time) decide.Decision
}

// A Decider decides: a decide.Service.
type Decider interface {
	Decide(ctx context.Context, q decide.Query) (decide.Decision, error)
}

// A Recorder is told of every decision that makes an event, once. It must
// neither block nor fail.
type Recorder interface {
	Record(u decide.Usage)
}

// Config says who may ask.
type Config struct {
	Tokens []string // bearer tokens of trusted callers; none: nobody may ask
}

// Deps is what an API works with. All are required but Recorder.
type Deps struct {
	Catalogue func() Catalogue // the one in force
	Decider   Decider
	Recorder  Recorder
	Log       *slog.Logger
}

// An API answers questions. It is safe for concurrent use.
type API struct {
	deps    Deps
	tokens  [][sha256.Size]byte // digests: equal in length whatever a caller sends
	buffers sync.Pool
}

// New returns an API.
func New(cfg Config, deps Deps) *API {
	a := &API{deps: deps, buffers: sync.Pool{New: func() any { return new(buffer) }}}
	for _, token := range cfg.Tokens {
		a.tokens = append(a.tokens, sha256.Sum256([]byte(token)))
	}
	return a
}

// Serves reports whether a path is one of this API's.
func (a *API) Serves(path string) bool { return path == decisionsPath || path == openAPIPath }

// ServeHTTP answers one request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case decisionsPath:
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			refuse(w, errMethod)
			return
		}
		if err := a.decide(w, r); err != nil {
			a.fail(w, r, err)
		}
	case openAPIPath:
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			refuse(w, errMethod)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-cache")
		_, _ = w.Write(openAPI)
	default:
		refuse(w, errNoPath)
	}
}

// fail answers an error. A caller who has gone hardly reads it.
func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	switch p := problemOf(err); {
	case p.status == http.StatusInternalServerError && r.Context().Err() != nil:
		err = errGone
	case p.status == http.StatusInternalServerError:
		a.deps.Log.Error("question not decided", "error", err.Error())
	}
	refuse(w, err)
}

// decide answers one question.
func (a *API) decide(w http.ResponseWriter, r *http.Request) error {
	switch {
	case !a.trusted(r):
		return errUnauthorized
	case !isJSON(r.Header.Get("Content-Type")):
		return errMedia
	}
	b := a.buffers.Get().(*buffer)
	defer a.buffers.Put(b)
	if err := b.read(w, r); err != nil {
		return err
	}
	q, err := parse(string(b.in))
	if err != nil {
		return err
	}
	d, err := a.answer(r.Context(), &q)
	if err != nil {
		return err
	}
	b.out = appendDecision(b.out[:0], &d)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	if d.Replayed {
		h.Set("Idempotent-Replayed", "true")
	}
	_, _ = w.Write(b.out)
	return nil
}

// answer resolves the API key of a question, if it has one, asks, and tells the
// recorder.
func (a *API) answer(ctx context.Context, q *question) (decide.Decision, error) {
	began := time.Now()
	if q.secret != "" {
		q.digest = sha256.Sum256([]byte(q.secret))
		rules := a.deps.Catalogue()
		key, ok := rules.Key(q.digest)
		if !ok {
			d := rules.UnknownKey(q.Query, began)
			a.record(&d, q, time.Since(began))
			return d, nil
		}
		if err := q.resolve(&key); err != nil {
			return decide.Decision{}, err
		}
		began = time.Now()
	}
	d, err := a.deps.Decider.Decide(ctx, q.Query)
	if err == nil {
		a.record(&d, q, time.Since(began))
	}
	return d, err
}

// record tells of a decision.
func (a *API) record(d *decide.Decision, q *question, took time.Duration) {
	if a.deps.Recorder == nil {
		return
	}
	if u, ok := d.Usage(); ok {
		u.Latency, u.KeyDigest, u.Labels = took, q.digest, q.labels
		a.deps.Recorder.Record(u)
	}
}

// trusted reports whether the request has one of the tokens. The time that
// this takes says nothing about them.
func (a *API) trusted(r *http.Request) bool {
	values := r.Header["Authorization"]
	if len(values) != 1 {
		return false
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return false
	}
	digest := sha256.Sum256([]byte(strings.Trim(token, " ")))
	found := 0
	for i := range a.tokens {
		found |= subtle.ConstantTimeCompare(digest[:], a.tokens[i][:])
	}
	return found == 1
}

// isJSON reports whether a content type is JSON in UTF-8; an absent one is
// taken for it.
func isJSON(contentType string) bool {
	if contentType == "" || contentType == "application/json" {
		return true
	}
	kind, params, err := mime.ParseMediaType(contentType)
	charset := params["charset"]
	return err == nil && kind == "application/json" && (charset == "" || strings.EqualFold(charset, "utf-8"))
}

// A buffer holds a question and its answer.
type buffer struct{ in, out []byte }

// read takes in the body of a question.
func (b *buffer) read(w http.ResponseWriter, r *http.Request) error {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTime))
	body := http.MaxBytesReader(w, r.Body, maxBody)
	for b.in = b.in[:0]; ; {
		if len(b.in) == cap(b.in) {
			b.in = append(b.in, make([]byte, max(1024, cap(b.in)))...)[:len(b.in)]
		}
		n, err := body.Read(b.in[len(b.in):cap(b.in)])
		b.in = b.in[:len(b.in)+n]
		var large *http.MaxBytesError
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			_ = rc.SetReadDeadline(time.Time{})
			return nil
		case errors.As(err, &large):
			return errTooLarge
		default:
			w.Header().Set("Connection", "close")
			return errBody
		}
	}
}
