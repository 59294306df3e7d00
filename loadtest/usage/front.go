package usage

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A Front stands between the indexer and the store and misbehaves: it refuses
// some documents of a bulk request with 429 without sending them on, and loses
// some answers after the store has acted.
type Front struct {
	URL string

	store        *url.URL
	proxy        *httputil.ReverseProxy
	refuse, lose float64
	server       http.Server

	mu  sync.Mutex
	rng *rand.Rand

	requests, refused, lost atomic.Int64
}

// NewFront returns a front of the store at a URL.
func NewFront(store string, refuse, lose float64, seed uint64) (*Front, error) {
	u, err := url.Parse(store)
	if err != nil {
		return nil, err
	}
	f := &Front{store: u, refuse: refuse, lose: lose, rng: rand.New(rand.NewPCG(seed, 2))}
	f.proxy = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(u) }, ErrorLog: log.New(io.Discard, "", 0),
	}
	return f, nil
}

// ServeHTTP passes everything on but what it spoils.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasSuffix(r.URL.Path, "/_bulk") {
		f.proxy.ServeHTTP(w, r)
		return
	}
	f.requests.Add(1)
	if err := f.bulk(w, r); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
	}
}

// bulk sends on what it does not refuse and mixes the answers.
func (f *Front) bulk(w http.ResponseWriter, r *http.Request) error {
	pairs, err := readPairs(r)
	if err != nil {
		return err
	}
	var kept bytes.Buffer
	refused := make([]bool, len(pairs))
	for i, p := range pairs {
		if refused[i] = f.happens(f.refuse); !refused[i] {
			kept.Write(p)
		} else {
			f.refused.Add(1)
		}
	}
	items, err := f.send(r, kept.Bytes())
	if err != nil {
		return err
	}
	if f.happens(f.lose) {
		f.lost.Add(1)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return err
		}
		return conn.Close()
	}
	return answer(w, refused, items)
}

// An item is what a bulk answer says of one document, by action.
type item map[string]json.RawMessage

// answer writes the store's items with the refused ones in their places.
func answer(w http.ResponseWriter, refused []bool, items []item) error {
	all := make([]item, 0, len(refused))
	faulty := false
	for _, no := range refused {
		switch {
		case no:
			faulty = true
			all = append(all, item{"create": json.RawMessage(
				`{"status":429,"error":{"type":"es_rejected_execution_exception","reason":"refused by the load test"}}`)})
		case len(items) == 0:
			return errors.New("the store answered fewer items than it was sent")
		default:
			all, items = append(all, items[0]), items[1:]
			faulty = faulty || bytes.Contains(all[len(all)-1]["create"], []byte(`"error"`))
		}
	}
	body, err := json.Marshal(map[string]any{"errors": faulty, "items": all})
	if err != nil {
		return err
	}
	w.Header().Set("X-Elastic-Product", "Elasticsearch")
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, err = w.Write(body)
	return err
}

// send sends documents on. An answer that is not 200 is an error.
func (f *Front) send(r *http.Request, body []byte) ([]item, error) {
	if len(body) == 0 {
		return nil, nil
	}
	u := *r.URL
	u.Scheme, u.Host = f.store.Scheme, f.store.Host
	out, err := http.NewRequestWithContext(r.Context(), r.Method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	out.Header.Set("Content-Type", r.Header.Get("Content-Type"))
	res, err := http.DefaultClient.Do(out)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the store answered %d: %s", res.StatusCode, text)
	}
	var got struct{ Items []item }
	return got.Items, json.Unmarshal(text, &got)
}

// readPairs splits a bulk body into documents, each with its action's line.
func readPairs(r *http.Request) ([][]byte, error) {
	var in io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, err
		}
		in = z
	}
	body, err := io.ReadAll(in)
	if err != nil {
		return nil, err
	}
	var pairs [][]byte
	for len(body) > 0 {
		first := bytes.IndexByte(body, '\n')
		second := bytes.IndexByte(body[first+1:], '\n')
		if first < 0 || second < 0 {
			return nil, errors.New("a bulk body ends in the middle of a document")
		}
		end := first + 1 + second + 1
		pairs, body = append(pairs, body[:end]), body[end:]
	}
	return pairs, nil
}

// happens is true for a share of its calls.
func (f *Front) happens(share float64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rng.Float64() < share
}

// Listen starts a front on a free port of the loopback.
func Listen(ctx context.Context, store string, refuse, lose float64, seed uint64) (*Front, error) {
	f, err := NewFront(store, refuse, lose, seed)
	if err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f.URL = "http://" + l.Addr().String()
	f.server = http.Server{Handler: f, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = f.server.Serve(l) }()
	return f, nil
}

// Close stops listening.
func (f *Front) Close() error { return f.server.Close() }
