package httpapi

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"penstock.dev/services/gateway/ask"
)

// The paths of this API, exactly, but for those of correctionPath.
const (
	decisionsPath = "/v1/decisions"
	batchPath     = "/v1/decisions:batch"
	openAPIPath   = "/v1/openapi.json"
)

const (
	maxBody  = 64 << 10         // bytes of a question or a correction
	maxBatch = 1 << 20          // bytes of a batch
	bodyTime = 10 * time.Second // for either to arrive
	maxKept  = 128 << 10        // bytes of a buffer that is used again
)

//go:embed openapi.json
var openAPI []byte

// An API answers questions. It is safe for concurrent use.
type API struct {
	desk    *ask.Desk
	log     *slog.Logger
	buffers sync.Pool
}

// New returns an API in front of a desk.
func New(desk *ask.Desk, log *slog.Logger) *API {
	return &API{desk: desk, log: log, buffers: sync.Pool{New: func() any { return new(buffer) }}}
}

// Serves reports whether a path is one of this API's.
func (a *API) Serves(path string) bool {
	if path == openAPIPath {
		return true
	}
	rest, ok := strings.CutPrefix(path, decisionsPath)
	if !ok {
		return false
	}
	_, _, correction := correctionPath(rest)
	return rest == "" || path == batchPath || correction
}

// ServeHTTP answers one request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	switch {
	case !a.Serves(path):
		refuse(w, errNoPath)
	case path == openAPIPath && r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		refuse(w, errMethod)
	case path == openAPIPath:
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-cache")
		_, _ = w.Write(openAPI)
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		refuse(w, errMethod)
	case path == decisionsPath:
		a.post(w, r, maxBody, a.decide)
	case path == batchPath:
		a.post(w, r, maxBatch, a.batch)
	default:
		a.post(w, r, maxBody, a.correct)
	}
}

// post takes in the body of a trusted caller, has it answered into the same
// buffer, and sends that.
func (a *API) post(w http.ResponseWriter, r *http.Request, most int64, answer func(h http.Header, r *http.Request, b *buffer) error) {
	b := a.buffers.Get().(*buffer)
	err := a.take(w, r, b, most)
	if err == nil {
		err = answer(w.Header(), r, b)
	}
	if err != nil {
		a.fail(w, r, err)
	} else {
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Cache-Control", "no-store")
		_, _ = w.Write(b.out)
	}
	if cap(b.in) <= maxKept && cap(b.out) <= maxKept {
		a.buffers.Put(b)
	}
}

// take reads the body of a request that may be answered.
func (a *API) take(w http.ResponseWriter, r *http.Request, b *buffer, most int64) error {
	switch {
	case !a.desk.Trusts(r.Header["Authorization"]):
		return ask.ErrUnauthorized
	case !isJSON(r.Header.Get("Content-Type")):
		return errMedia
	default:
		return b.read(w, r, most)
	}
}

// fail answers an error. A caller who has gone hardly reads it.
func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	switch p := problemOf(err); {
	case p.Internal() && r.Context().Err() != nil:
		err = ask.ErrGone
	case p.Internal():
		a.log.Error("question not decided", "error", err.Error())
	}
	refuse(w, err)
}

// decide answers one question.
func (a *API) decide(h http.Header, r *http.Request, b *buffer) error {
	q, err := parse(string(b.in))
	if err != nil {
		return err
	}
	d, err := a.desk.Answer(r.Context(), &q)
	if err != nil {
		return err
	}
	b.out = append(a.appendDecision(b.out[:0], &d), "}\n"...)
	if d.Replayed {
		h.Set(replayedHeader, "true")
	}
	return nil
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

// replayedHeader marks an answer that was given before.
const replayedHeader = "Idempotent-Replayed"

// A buffer holds a request and its answer.
type buffer struct{ in, out []byte }

// read takes in a body of at most so many bytes.
func (b *buffer) read(w http.ResponseWriter, r *http.Request, most int64) error {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTime))
	body := http.MaxBytesReader(w, r.Body, most)
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
			return fmt.Errorf("%w: more than %d bytes", errTooLarge, most)
		case errors.Is(err, os.ErrDeadlineExceeded):
			w.Header().Set("Connection", "close")
			return errLate
		default:
			w.Header().Set("Connection", "close")
			return ask.Faults{{Field: "body", Message: "is not framed as the headers say, or breaks off"}}
		}
	}
}
