package proof

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"penstock.dev/deploy/local/estate"
)

// searchWithin bounds the wait for documents.
const searchWithin = 30 * time.Second

// refusalsFound has globex refused, and asks the search store for just that. A
// store that somebody else runs may hold documents of before.
func refusalsFound(ctx context.Context, s *stage) (Finding, error) {
	const exports, cost = 40, 20
	before, err := find(ctx, s.Estate, s.began)
	if err != nil {
		return Finding{}, err
	}
	all, err := s.sendAll(ctx, exports, http.MethodPost, s.Env["GATEWAY_URL"]+"/export/v1/export", s.keys["GLOBEX_KEY"])
	if err != nil {
		return Finding{}, err
	}
	answered, refused := time.Now(), int64(with(all, http.StatusTooManyRequests))
	got, err := awaitFound(ctx, s.Estate, s.began, before.refused+refused)
	if err != nil {
		return Finding{}, err
	}
	took, found := time.Since(answered), got.refused-before.refused
	return Finding{
		Done: fmt.Sprintf("%d exports of %d units each as globex, under the rule silver-rate (GCRA, burst 200), then a search for tenantId globex, statusCode 429, ts of the last hour",
			exports, cost),
		Expected: fmt.Sprintf("as many documents as were refused here, %d; and of all decisions so far no number of a stream missing", refused),
		Measured: fmt.Sprintf("%d documents, the last of them found %.1f s after its request was answered; of %d decisions in %d streams %d are missing",
			found, took.Seconds(), got.documents+got.missing, got.streams, got.missing),
		Badges: []Badge{
			{"refused", strconv.FormatInt(refused, 10), Plain},
			{"found", strconv.FormatInt(found, 10), Good},
			{"after", fmt.Sprintf("%.1f s", took.Seconds()), Plain},
			{"missing", fmt.Sprintf("%d of %d decisions", got.missing, got.documents+got.missing), Good},
		},
		Held: refused > 0 && found == refused && got.missing == 0,
	}, nil
}

// What a search has found.
type found struct {
	refused            int64 // globex, 429, the last hour
	documents, streams int64 // since the demo began
	missing            int64 // numbers of these streams without a document
}

// awaitFound asks until as many refusals as that are found and no document is
// missing, or time is up, and returns the last answer.
func awaitFound(ctx context.Context, e *estate.Estate, began time.Time, refused int64) (found, error) {
	deadline := time.Now().Add(searchWithin)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		got, err := find(ctx, e, began)
		if err != nil || got.refused == refused && got.missing == 0 || time.Now().After(deadline) {
			return got, err
		}
		select {
		case <-ctx.Done():
			return found{}, ctx.Err()
		case <-tick.C:
		}
	}
}

const refusals = `{"query": {"bool": {"filter": [{"term": {"tenantId": "globex"}},
  {"term": {"statusCode": 429}}, {"range": {"ts": {"gte": "now-1h"}}}]}}}`

// Events of a stream are numbered from 1, so the last number is also how many
// documents it must have. A gateway's run begins new streams.
const streams = `{"size": 0, "track_total_hits": true, "query": {"range": {"ts": {"gte": %q}}}, "aggs": {"streams": {
  "terms": {"field": "streamId", "size": 1000}, "aggs": {"last": {"max": {"field": "sequence"}}}}}}`

func find(ctx context.Context, e *estate.Estate, began time.Time) (found, error) {
	var f found
	total, err := search(ctx, e, "_count", refusals)
	if err != nil {
		return f, err
	}
	all, err := search(ctx, e, "_search", fmt.Sprintf(streams, began.UTC().Format(time.RFC3339Nano)))
	if err != nil {
		return f, err
	}
	f.refused, f.documents = total.Count, all.Hits.Total.Value
	for _, stream := range all.Aggregations.Streams.Buckets {
		f.streams++
		f.missing += int64(stream.Last.Value) - stream.Count
	}
	return f, nil
}

// What the search store answers, as far as it is looked at.
type searched struct {
	Count int64 `json:"count"`
	Hits  struct {
		Total struct {
			Value int64 `json:"value"`
		} `json:"total"`
	} `json:"hits"`
	Aggregations struct {
		Streams struct {
			Buckets []struct {
				Count int64 `json:"doc_count"`
				Last  struct {
					Value float64 `json:"value"`
				} `json:"last"`
			} `json:"buckets"`
		} `json:"streams"`
	} `json:"aggregations"`
}

func search(ctx context.Context, e *estate.Estate, verb, question string) (searched, error) {
	var got searched
	store, err := url.Parse(e.Env["ELASTICSEARCH_URL"])
	if err != nil {
		return got, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, store.JoinPath("ratelimit-usage-*", verb).String(), strings.NewReader(question))
	if err != nil {
		return got, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return got, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", verb, resp.Status, bytes.TrimSpace(answer))
	}
	if err != nil {
		return got, err
	}
	return got, json.Unmarshal(answer, &got)
}
