package esindex

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/elastic/go-elasticsearch/v8/esapi"

	"penstock.dev/services/usage-indexer/usagedoc"
)

// shownFields are what is read of the answer to a bulk request.
var shownFields = []string{"errors", "items.*.status", "items.*.error.type", "items.*.error.reason"}

// maxAnswer bounds the answer to one request, in bytes. 5,000 documents of which
// each is refused at length are about 2 MB.
const maxAnswer = 256 << 20

// A reply is the answer to a bulk request of nothing but create.
type reply struct {
	Items []struct {
		Create item `json:"create"`
	} `json:"items"`
}

// An item is the answer for one document.
type item struct {
	Status int   `json:"status"`
	Error  fault `json:"error"`
}

// A trouble is why a request as a whole came to nothing.
type trouble struct {
	class class // again, paused, smaller or malformed
	cause cause
	text  string
}

// Error is the trouble for a person.
func (t *trouble) Error() string { return t.text }

// bodies are reused: each is as large as a request.
var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// appendEntry appends the two lines of one document.
func (s *Store) appendEntry(b []byte, e *usagedoc.Entry) []byte {
	b = append(b, `{"create":{"_index":"`...)
	b = append(b, s.indexName(e.Day)...)
	b = append(b, `","_id":"`...)
	b = usagedoc.AppendUUID(b, e.ID)
	b = append(b, "\"}}\n"...)
	b = append(b, e.Doc...)
	return append(b, '\n')
}

// overhead is how many bytes of a request come with a document, at most.
func (s *Store) overhead() int { return len(s.cfg.Prefix) + 90 }

// bulk sends the entries that pending names, and returns the answer for each, or
// the trouble with all of them.
func (s *Store) bulk(ctx context.Context, entries []usagedoc.Entry, pending []int) ([]item, error) {
	body, _ := bodies.Get().(*bytes.Buffer)
	defer bodies.Put(body)
	body.Reset()
	b := body.AvailableBuffer()
	for _, i := range pending {
		b = s.appendEntry(b, &entries[i])
	}
	body.Write(b)

	began := time.Now()
	status, answer, err := s.send(ctx, esapi.BulkRequest{
		Body: bytes.NewReader(body.Bytes()), FilterPath: shownFields, Timeout: s.cfg.Timeout / 2,
		Header: http.Header{"Content-Type": {"application/x-ndjson"}},
	})
	s.metrics.bulkSeconds.Observe(time.Since(began).Seconds())
	switch {
	case err != nil:
		return nil, &trouble{again, causeTransport, err.Error()}
	case status >= 300:
		return nil, requestTrouble(status, answer)
	}
	var r reply
	if err := json.Unmarshal(answer, &r); err != nil {
		return nil, &trouble{again, causeUnreadable, fmt.Sprintf("unreadable answer: %v", err)}
	}
	if len(r.Items) != len(pending) {
		return nil, &trouble{again, causeUnreadable, fmt.Sprintf("%d answers for %d documents", len(r.Items), len(pending))}
	}
	items := make([]item, len(r.Items))
	for i := range r.Items {
		items[i] = r.Items[i].Create
		if items[i].Status == 0 {
			return nil, &trouble{again, causeUnreadable, fmt.Sprintf("no answer for document %d", i)}
		}
	}
	return items, nil
}

// requestTrouble is what an answer other than 2xx means.
func requestTrouble(status int, answer []byte) *trouble {
	t := &trouble{class: classifyRequest(status), text: fmt.Sprintf("answer %d: %s", status, faultOf(answer))}
	switch {
	case status == http.StatusTooManyRequests:
		t.cause = causeRejected
	case t.class == smaller:
		t.cause = causeTooLarge
	case t.class == malformed:
		t.cause = causeMalformed
	case t.class == paused:
		t.cause = causePaused
	default:
		t.cause = causeUnavailable
	}
	return t
}

// faultOf reads the error of a whole answer, which may come from a proxy.
func faultOf(answer []byte) fault {
	var whole struct {
		Error fault `json:"error"`
	}
	if json.Unmarshal(answer, &whole) == nil && whole.Error != (fault{}) {
		return whole.Error
	}
	return fault{Reason: string(bytes.ToValidUTF8(answer[:min(len(answer), 200)], nil))}
}

// send does one request within the configured time and returns its status and
// body. An error means that there was no answer, or not all of it.
func (s *Store) send(ctx context.Context, r esapi.Request) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	resp, err := r.Do(ctx, s.client)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return 0, nil, fmt.Errorf("answer %d: %w", resp.StatusCode, err)
	}
	return resp.StatusCode, answer, nil
}

// takesRequests asks the store to delete a document that nobody made, and reports
// whether it took the request. So a document that is refused with its whole
// request is told from a store that refuses every request.
func (s *Store) takesRequests(ctx context.Context, d usagedoc.Day) bool {
	line := fmt.Sprintf(`{"delete":{"_index":%q,"_id":"penstock-canary"}}`+"\n", s.indexName(d))
	status, _, err := s.send(ctx, esapi.BulkRequest{
		Body: bytes.NewReader([]byte(line)), FilterPath: shownFields,
		Header: http.Header{"Content-Type": {"application/x-ndjson"}},
	})
	return err == nil && status < 300
}
