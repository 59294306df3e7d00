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

// refusalsFound has a tenant refused, and asks the search store for just that. A
// store that somebody else runs may hold documents of before.
func refusalsFound(ctx context.Context, s *stage) (Finding, error) {
	const asked, limit = 40, 10
	tenant := s.named("refused")
	err := s.enforce(ctx, s.tenant("refused", "Refused"), object{"rules", tenant, estate.Object{
		"kind": "rate", "algorithm": "sliding_window_log", "subject": []string{"tenant"}, "match": estate.Object{"tenant": tenant},
		"limit": limit, "window": "1h",
	}})
	if err != nil {
		return Finding{}, err
	}
	key, err := s.key(ctx, "refused")
	if err != nil {
		return Finding{}, err
	}
	all, err := s.sendAll(ctx, asked, http.MethodGet, s.Env["GATEWAY_URL"]+"/search/v1/search?q=tea", key)
	if err != nil {
		return Finding{}, err
	}
	answered, refused := time.Now(), int64(with(all, http.StatusTooManyRequests))
	got, err := awaitFound(ctx, s.Estate, tenant, s.began, refused)
	if err != nil {
		return Finding{}, err
	}
	took, found := time.Since(answered), got.refused
	return Finding{
		Done: fmt.Sprintf("%d searches under a rule of %d an hour (log), then a search for tenantId %s, statusCode 429, ts of the last hour",
			asked, limit, tenant),
		Expected: fmt.Sprintf("as many documents as were refused here, %d; and of all decisions so far no number of a stream missing", refused),
		Measured: fmt.Sprintf("%d documents, the last of them found %.1f s after its request was answered; of %d decisions in %d streams %d are missing",
			found, took.Seconds(), got.documents+got.missing, got.streams, got.missing),
		Badges: []Badge{
			{"refused", strconv.FormatInt(refused, 10), Plain},
			{"found", strconv.FormatInt(found, 10), Good},
			{"after", fmt.Sprintf("%.1f s", took.Seconds()), Plain},
			{"missing", fmt.Sprintf("%d of %d decisions", got.missing, got.documents+got.missing), Good},
		},
		Held: refused == asked-limit && found == refused && got.missing == 0,
	}, nil
}

// What a search has found.
type found struct {
	refused            int64 // of the tenant, 429, the last hour
	documents, streams int64 // since the demo began
	missing            int64 // numbers of these streams without a document
}

// awaitFound asks until as many refusals as that are found and no document is
// missing, or time is up, and returns the last answer.
func awaitFound(ctx context.Context, e *estate.Estate, tenant string, began time.Time, refused int64) (found, error) {
	deadline := time.Now().Add(searchWithin)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		got, err := find(ctx, e, tenant, began)
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

const refusals = `{"query": {"bool": {"filter": [{"term": {"tenantId": %q}},
  {"term": {"statusCode": 429}}, {"range": {"ts": {"gte": "now-1h"}}}]}}}`

// Events of a stream are numbered from 1, so the last number is also how many
// documents it must have. A gateway's run begins new streams.
const streams = `{"size": 0, "track_total_hits": true, "query": {"range": {"ts": {"gte": %q}}}, "aggs": {"streams": {
  "terms": {"field": "streamId", "size": 1000}, "aggs": {"last": {"max": {"field": "sequence"}}}}}}`

func find(ctx context.Context, e *estate.Estate, tenant string, began time.Time) (found, error) {
	var f found
	total, err := search(ctx, e, "_count", fmt.Sprintf(refusals, tenant))
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
