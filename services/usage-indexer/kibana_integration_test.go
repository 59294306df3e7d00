//go:build integration

package main

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// request is the search that Kibana makes of a visualisation: its buckets one in
// the other, its metrics in the innermost.
func (v visState) request(from source) map[string]any {
	metrics := map[string]any{}
	for _, a := range v.Aggs {
		if a.Schema == "metric" && a.Type != "count" { // the count is every bucket's own
			metrics[a.ID] = map[string]any{a.Type: a.metric()}
		}
	}
	inner := metrics
	for i := len(v.Aggs) - 1; i >= 0; i-- {
		a := v.Aggs[i]
		if a.Schema == "metric" {
			continue
		}
		bucket := map[string]any{a.Type: a.bucket(v)}
		if len(inner) > 0 {
			bucket["aggs"] = inner
		}
		inner = map[string]any{a.ID: bucket}
		if by := a.Params.OrderBy; by != "" && by != "_key" && metrics[by] != nil { // sorting needs the metric beside the inner buckets
			if aggs, ok := bucket["aggs"].(map[string]any); ok {
				aggs[by] = metrics[by]
			}
		}
	}
	return map[string]any{"size": 0, "track_total_hits": true, "query": from.Query.dsl(), "aggs": inner}
}

func (q lucene) dsl() map[string]any {
	if q.Query == "" {
		return map[string]any{"match_all": map[string]any{}}
	}
	return map[string]any{"query_string": map[string]any{"query": q.Query, "analyze_wildcard": true}}
}

func (a visAgg) metric() map[string]any {
	out := map[string]any{"field": a.Params.Field}
	if a.Type == "percentiles" {
		out["percents"] = a.Params.Percent
	}
	return out
}

func (a visAgg) bucket(v visState) map[string]any {
	switch a.Type {
	case "date_histogram":
		return map[string]any{"field": a.Params.Field, "fixed_interval": "1m", "min_doc_count": 1}
	case "filters":
		filters := map[string]any{}
		for _, f := range a.Params.Filters {
			filters[f.Label] = f.Input.dsl()
		}
		return map[string]any{"filters": filters}
	}
	by := a.Params.OrderBy
	for _, m := range v.Aggs {
		if m.ID == by && m.Type == "count" {
			by = "_count"
		}
	}
	out := map[string]any{"field": a.Params.Field, "size": a.Params.Size, "order": map[string]any{by: a.Params.Order}}
	if a.Params.Missing {
		out["missing"] = a.Params.Label
	}
	return out
}

// TestIntegrationKibana guarantees that every visualisation and saved search
// asks the store what it understands, and sees something of the sample: no chart
// is empty, and none of its buckets is.
func TestIntegrationKibana(t *testing.T) {
	t.Parallel()

	for name, url := range sampled(t) {
		for _, o := range savedObjects(t) {
			if o.Type != "visualization" && o.Type != "search" {
				continue
			}
			t.Run(name+"/"+o.ID, func(t *testing.T) {
				t.Parallel()

				request := map[string]any{"query": o.source(t).Query.dsl(), "sort": o.Attributes.Sort, "_source": o.Attributes.Columns}
				if o.Type == "visualization" {
					request = o.vis(t).request(o.source(t))
				} else {
					request["sort"] = []any{map[string]any{o.Attributes.Sort[0][0]: o.Attributes.Sort[0][1]}}
				}
				body, err := json.Marshal(request)
				if err != nil {
					t.Fatal(err)
				}
				status, text := ask(t, url+"/ratelimit-usage-*/_search", string(body))
				var answer struct {
					Hits struct {
						Total struct {
							Value int `json:"value"`
						} `json:"total"`
					} `json:"hits"`
					Aggregations map[string]json.RawMessage `json:"aggregations"`
				}
				if err := json.Unmarshal(text, &answer); err != nil || status != http.StatusOK {
					t.Fatalf("answered %d (%v): %s to %s", status, err, text, body)
				}
				if answer.Hits.Total.Value == 0 {
					t.Errorf("sees nothing of the sample: %s", body)
				}
				if o.Type == "visualization" {
					filled(t, answer.Aggregations)
				}
			})
		}
	}
}

// filled fails when an aggregation has no bucket, an empty one, or no value.
func filled(t *testing.T, aggs map[string]json.RawMessage) {
	t.Helper()
	if len(aggs) == 0 {
		t.Error("the answer has no aggregation")
	}
	for id, raw := range aggs {
		if _, err := strconv.Atoi(id); err != nil {
			continue // a bucket's own key and count
		}
		var agg struct {
			Buckets json.RawMessage `json:"buckets"`
			Value   *float64        `json:"value"`
			Values  map[string]any  `json:"values"`
		}
		if err := json.Unmarshal(raw, &agg); err != nil {
			t.Fatal(err)
		}
		if agg.Buckets == nil {
			if agg.Value == nil && len(agg.Values) == 0 {
				t.Errorf("metric %s has no value: %s", id, raw)
			}
			continue
		}
		for _, bucket := range buckets(t, agg.Buckets) {
			if count := string(bucket["doc_count"]); count == "0" || count == "" {
				t.Errorf("a bucket of %s is empty: %s", id, raw)
			}
			delete(bucket, "key")
			delete(bucket, "key_as_string")
			if delete(bucket, "doc_count"); len(bucket) > 0 {
				filled(t, bucket)
			}
		}
	}
}

// buckets returns a list of buckets, or those of named filters.
func buckets(t *testing.T, raw json.RawMessage) []map[string]json.RawMessage {
	t.Helper()
	var list []map[string]json.RawMessage
	if strings.HasPrefix(string(raw), "{") {
		var named map[string]map[string]json.RawMessage
		if err := json.Unmarshal(raw, &named); err != nil {
			t.Fatal(err)
		}
		for _, b := range named {
			list = append(list, b)
		}
	} else if err := json.Unmarshal(raw, &list); err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 {
		t.Error("there are no buckets")
	}
	return list
}
