package catalog_test

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"penstock.dev/services/internal/condition"
	"penstock.dev/services/rule-admin/catalog"
	"penstock.dev/services/rule-admin/catalog/catalogtest"
)

// TestReadAccepts guarantees what can be put, and that it is kept as it was put:
// reading what was shown gives the same again.
func TestReadAccepts(t *testing.T) {
	t.Parallel()
	many := func(n int, item func(i int) string) string {
		var items []string
		for i := range n {
			items = append(items, item(i))
		}
		return "[" + strings.Join(items, ",") + "]"
	}
	tests := []struct {
		kind catalog.Kind
		text string
	}{
		{catalog.KindTenant, `{}`},
		{catalog.KindTenant, `{"id":"x","version":7,"changed_at":"whenever","changed_by":"me"}`},
		{catalog.KindTenant, `{"name":"` + strings.Repeat("é", 128) + `","anchor":"2026-01-31T10:00:00.000001+03:00"}`},
		{catalog.KindTenant, `{"name":"<script>\"'&\\ ☃ \ud83d\ude00"}`},
		{catalog.KindApplication, `{"tenant":"a"}`},
		{catalog.KindUser, `{"tenant":"~.-_"}`},
		{catalog.KindAPIKey, `{"tenant":"a","user":"any UTF-8 ☃ / value"}`},
		{catalog.KindService, `{"upstream":"http://127.0.0.1:9001"}`},
		{catalog.KindService, `{"upstream":"https://a-b.example.org./base/path/","hosts":["api.example.org","127.0.0.1","[2001:db8::1]","[::ffff:192.0.2.1]"],"path_prefix":"/"}`},
		{catalog.KindService, `{"upstream":"HTTP://x","path_prefix":""}`[:13] + `http://[::1]:65535","path_prefix":"","cors":{"allowed_origins":["*","https://app.example.org:8443","https://app.example.org:80","http://[2001:db8::1]:8080","http://[::ffff:c000:201]"]}}`},
		{catalog.KindService, `{"upstream":"http://x","cors":{},"connect_timeout":"1µs","response_timeout":"1h","idle_timeout":"24h"}`},
		{catalog.KindEndpoint, `{"service":"s","path":"/"}`},
		{catalog.KindEndpoint, `{"service":"s","method":"M-SEARCH","path":"/a/{id}/b/{id_2}","cost":9007199254740991,"refund_on":["timeout","5xx","100","599"]}`},
		{catalog.KindEndpoint, `{"service":"s","method":"","path":"/münchen","cost":0,"refund_on":[]}`},
		{catalog.KindPlan, `{}`},
		{catalog.KindPlan, `{"fee":{"amount":0,"currency":"TRY","period":"year"},"included":{},"overage":[]}`},
		{catalog.KindPlan, `{"overage":[{"meter":"a","up_to":1,"unit_price":"0"},{"meter":"b","unit_price":"1.5"},{"meter":"a","up_to":2,"unit_price":"123456789012.123456789012"},{"meter":"a","unit_price":"0.00001"}]}`},
		{catalog.KindRule, `{"kind":"block"}`},
		{catalog.KindRule, `{"kind":"block","algorithm":"none","wallet":"none","subject":["ip"],"match":{"networks":["203.0.113.0/24","2001:db8::/32"]},"mode":"shadow"}`},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":[],"limit":0,"window":"1µs"}`},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":["ip","tenant"],"limit":9007199254740991,"window":"8784h"}`},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":[],"limit":2000000000,"window":"1h","burst":1000000000,"cost":3,"soft":true}`},
		{catalog.KindRule, `{"kind":"quota","subject":["user","tenant"],"limit":1e3,"period":{"unit":"hour"},"match":{},"thresholds":[]}`},
		{catalog.KindRule, `{"kind":"quota","subject":["tenant"],"limit":1,"period":{"unit":"year","count":100,"alignment":"anniversary","anchor":"2149-12-31T23:59:59Z"},
			"thresholds":[100,{"left":0},1,{"left":9007199254740991}],"valid_from":"1970-01-01T00:00:00Z","valid_to":"2026-01-01T00:00:00.5Z","priority":-1000000}`},
		{catalog.KindRule, `{"kind":"rate","algorithm":"fixed_window","subject":["user"],"limit":1000000000,"window":"1h","on_failure":"local"}`},
		{catalog.KindRule, `{"kind":"rate","algorithm":"sliding_window_log","subject":[],"limit":10000,"window":"1h"}`},
		{catalog.KindRule, `{"kind":"rate","algorithm":"sliding_window_counter","subject":[],"limit":10,"window":"1h","soft":true}`},
		{catalog.KindRule, `{"kind":"rate","algorithm":"token_bucket","subject":[],"limit":10,"window":"1h","burst":0}`},
		{catalog.KindRule, `{"kind":"rate","algorithm":"leaky_bucket","subject":[],"limit":10,"window":"1s","burst":600,"max_delay":"1m"}`},
		{catalog.KindRule, `{"kind":"rate","algorithm":"leaky_bucket","subject":[],"limit":10,"window":"1s","max_delay":"1s"}`},
		{catalog.KindRule, `{"kind":"rate","algorithm":"leaky_bucket","subject":[],"limit":60,"window":"60s","burst":10,"max_delay":"3s"}`},
		{catalog.KindRule, `{"kind":"rate","algorithm":"leaky_bucket","subject":[],"limit":3,"window":"1s","burst":1,"max_delay":"333.333ms"}`},
		{catalog.KindRule, `{"kind":"rate","algorithm":"leaky_bucket","subject":[],"limit":30000000000000,"window":"8784h","burst":1000000000,"max_delay":"1m"}`},
		{catalog.KindRule, `{"kind":"rate","algorithm":"leaky_bucket","subject":[],"limit":0,"window":"1s","max_delay":"1s"}`},
		{catalog.KindRule, `{"kind":"rate","algorithm":"leaky_bucket","subject":[],"limit":9007199254740991,"window":"1s","max_delay":"1s"}`},
		{catalog.KindRule, `{"kind":"rate","algorithm":"leaky_bucket","subject":[],"limit":10,"window":"1s","max_delay":"0s","wallet":"none"}`},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":[],"limit":100,"window":"1s","mode":"shadow","lease":{"units":100,"ttl":"1s"}}`},
		{catalog.KindRule, `{"kind":"block","condition":"labels.region == \"eu\" &&\n\tcost > 3"}`},
		{catalog.KindRule, `{"kind":"block","condition":"` + strings.Repeat(" ", 4092) + `true"}`},
		{catalog.KindRule, `{"kind":"wallet","wallet":"prepaid","subject":["tenant"],"match":{"tenant":"acme"},"meter":"credits","thresholds":[{"left":10}]}`},
		{catalog.KindRule, `{"kind":"wallet","algorithm":"overdraft_wallet","wallet":"renewable","subject":["tenant"],"limit":500,"period":{"unit":"month"},"on_failure":"open"}`},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":[],"limit":1,"window":"1s","match":{"networks":` +
			many(256, func(i int) string { return fmt.Sprintf(`"10.0.%d.0/24"`, i) }) + `}}`},
	}
	for _, tt := range tests {
		body, err := catalog.Read(tt.kind, "x", []byte(tt.text))
		if err != nil {
			t.Errorf("%s %s: %v", tt.kind, tt.text, err)
			continue
		}
		roundTrip(t, tt.kind, body)
	}
}

// roundTrip fails the test when a body that was kept and read again is another.
func roundTrip(t *testing.T, kind catalog.Kind, body catalog.Body) {
	t.Helper()
	kept, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	again, err := catalog.Load(kind, kept)
	if err != nil {
		t.Fatalf("%s: %v", kept, err)
	}
	shown, err := json.Marshal(&catalog.Object{Kind: kind, ID: "x", Version: 1, ChangedAt: t0, ChangedBy: "ops", Body: again})
	if err != nil {
		t.Fatal(err)
	}
	back, err := catalog.Read(kind, "x", shown)
	if err != nil {
		t.Errorf("what was shown cannot be put back: %s: %v", shown, err)
		return
	}
	if text, err := json.Marshal(back); err != nil || string(text) != string(kept) {
		t.Errorf("put back as %s (%v), want %s", text, err, kept)
	}
}

// TestReadRefuses guarantees what cannot be put, and the field that is named.
// What a rule may say is tested with the rule.
func TestReadRefuses(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 300)
	tests := []struct {
		kind  catalog.Kind
		text  string
		err   error
		field string
	}{
		{catalog.KindTenant, `{"name":"` + long + `"}`, catalog.ErrInvalid, "name"},
		{catalog.KindTenant, `{"name":"a\u0000b"}`, catalog.ErrInvalid, "name"},
		{catalog.KindTenant, `{"name":"a\nb"}`, catalog.ErrInvalid, "name"},
		{catalog.KindTenant, `{"plan":""}`, catalog.ErrInvalid, "plan"},
		{catalog.KindTenant, `{"zone":""}`, catalog.ErrInvalid, "zone"},
		{catalog.KindTenant, `{"zone":"../etc/passwd"}`, catalog.ErrInvalid, "zone"},
		{catalog.KindTenant, `{"zone":"` + long + `"}`, catalog.ErrInvalid, "zone"},
		{catalog.KindTenant, `{"anchor":"2026-01-31"}`, catalog.ErrInvalid, "anchor"},
		{catalog.KindTenant, `{"anchor":"1969-12-31T23:59:59Z"}`, catalog.ErrInvalid, "anchor"},
		{catalog.KindTenant, `{"anchor":"2150-01-01T00:00:00Z"}`, catalog.ErrInvalid, "anchor"},
		{catalog.KindTenant, `{"anchor":"2026-01-31T10:00:00.0000001Z"}`, catalog.ErrInvalid, "anchor"},
		{catalog.KindTenant, `{"currency":"DOLLAR"}`, catalog.ErrInvalid, "currency"},
		{catalog.KindTenant, `{"id":"y"}`, catalog.ErrInvalid, "id"},
		{catalog.KindTenant, `{"id":7}`, catalog.ErrMalformed, "id"},
		{catalog.KindTenant, `{"version":"7"}`, catalog.ErrMalformed, "version"},
		{catalog.KindApplication, `{}`, catalog.ErrInvalid, "tenant"},
		{catalog.KindApplication, `{"tenant":"a b"}`, catalog.ErrInvalid, "tenant"},
		{catalog.KindUser, `{"name":"x"}`, catalog.ErrInvalid, "tenant"},
		{catalog.KindAPIKey, `{"tenant":"a","user":""}`, catalog.ErrInvalid, "user"},
		{catalog.KindAPIKey, `{"tenant":"a","digest":"x"}`, catalog.ErrMalformed, "digest"},
		{catalog.KindService, `{}`, catalog.ErrInvalid, "upstream"},
		{catalog.KindService, `{"upstream":""}`, catalog.ErrInvalid, "upstream"},
		{catalog.KindService, `{"upstream":"127.0.0.1:9001"}`, catalog.ErrInvalid, "upstream"},
		{catalog.KindService, `{"upstream":"http://"}`, catalog.ErrInvalid, "upstream"},
		{catalog.KindService, `{"upstream":"http:///x"}`, catalog.ErrInvalid, "upstream"},
		{catalog.KindService, `{"upstream":"http://u:p@h"}`, catalog.ErrInvalid, "upstream"},
		{catalog.KindService, `{"upstream":"http://h/?q"}`, catalog.ErrInvalid, "upstream"},
		{catalog.KindService, `{"upstream":"http://h:0"}`, catalog.ErrInvalid, "upstream"},
		{catalog.KindService, `{"upstream":"http://h:65536"}`, catalog.ErrInvalid, "upstream"},
		{catalog.KindService, `{"upstream":"http://h:+80"}`, catalog.ErrInvalid, "upstream"},
		{catalog.KindService, `{"upstream":"http://h:"}`, catalog.ErrInvalid, "upstream"},
		{catalog.KindService, `{"upstream":"http://a b"}`, catalog.ErrInvalid, "upstream"},
		{catalog.KindService, `{"upstream":"http://[fe80::1%eth0]"}`, catalog.ErrInvalid, "upstream"},
		{catalog.KindService, `{"upstream":"http://2001:db8::1"}`, catalog.ErrInvalid, "upstream"},
		{catalog.KindService, `{"upstream":"http://h/a/../b"}`, catalog.ErrInvalid, "upstream"},
		{catalog.KindService, `{"upstream":"http://h/` + strings.Repeat("a", 2048) + `"}`, catalog.ErrInvalid, "upstream"},
		{catalog.KindService, `{"upstream":"http://h","hosts":["A.example.org"]}`, catalog.ErrInvalid, "hosts[0]"},
		{catalog.KindService, `{"upstream":"http://h","hosts":["a","a"]}`, catalog.ErrInvalid, "hosts[1]"},
		{catalog.KindService, `{"upstream":"http://h","hosts":["*.example.org"]}`, catalog.ErrInvalid, "hosts[0]"},
		{catalog.KindService, `{"upstream":"http://h","hosts":[""]}`, catalog.ErrInvalid, "hosts[0]"},
		{catalog.KindService, `{"upstream":"http://h","path_prefix":"payments"}`, catalog.ErrInvalid, "path_prefix"},
		{catalog.KindService, `{"upstream":"http://h","path_prefix":"/payments/"}`, catalog.ErrInvalid, "path_prefix"},
		{catalog.KindService, `{"upstream":"http://h","path_prefix":"/a/./b"}`, catalog.ErrInvalid, "path_prefix"},
		{catalog.KindService, `{"upstream":"http://h","path_prefix":"/a%2Fb"}`, catalog.ErrInvalid, "path_prefix"},
		{catalog.KindService, `{"upstream":"http://h","path_prefix":"/a\u0000"}`, catalog.ErrInvalid, "path_prefix"},
		{catalog.KindService, `{"upstream":"http://h","cors":{"allowed_origins":["app.example.org"]}}`, catalog.ErrInvalid, "cors.allowed_origins[0]"},
		{catalog.KindService, `{"upstream":"http://h","cors":{"allowed_origins":["https://a/b"]}}`, catalog.ErrInvalid, "cors.allowed_origins[0]"},
		{catalog.KindService, `{"upstream":"http://h","cors":{"origins":[]}}`, catalog.ErrMalformed, "cors.origins"},
		{catalog.KindService, `{"upstream":"http://h","connect_timeout":"10m1s"}`, catalog.ErrInvalid, "connect_timeout"},
		{catalog.KindService, `{"upstream":"http://h","response_timeout":"0s"}`, catalog.ErrInvalid, "response_timeout"},
		{catalog.KindService, `{"upstream":"http://h","idle_timeout":"1ns"}`, catalog.ErrInvalid, "idle_timeout"},
		{catalog.KindRule, `{"kind":"block","match":{"tenant":""}}`, catalog.ErrInvalid, "match.tenant"},
		{catalog.KindRule, `{"kind":"block","match":{"plan":""}}`, catalog.ErrInvalid, "match.plan"},
		{catalog.KindRule, `{"kind":"block","match":{"application":""}}`, catalog.ErrInvalid, "match.application"},
		{catalog.KindRule, `{"kind":"block","match":{"user":""}}`, catalog.ErrInvalid, "match.user"},
		{catalog.KindRule, `{"kind":"block","match":{"api_key":""}}`, catalog.ErrInvalid, "match.api_key"},
		{catalog.KindRule, `{"kind":"block","match":{"service":""}}`, catalog.ErrInvalid, "match.service"},
		{catalog.KindRule, `{"kind":"block","match":{"endpoint":""}}`, catalog.ErrInvalid, "match.endpoint"},
		{catalog.KindRule, `{"kind":"block","match":{"networks":[]}}`, catalog.ErrInvalid, "match.networks"},
		{catalog.KindEndpoint, `{"path":"/"}`, catalog.ErrInvalid, "service"},
		{catalog.KindEndpoint, `{"service":"s"}`, catalog.ErrInvalid, "path"},
		{catalog.KindEndpoint, `{"service":"s","path":"/","method":"post"}`, catalog.ErrInvalid, "method"},
		{catalog.KindEndpoint, `{"service":"s","path":"/a/{id}/{id}"}`, catalog.ErrInvalid, "path"},
		{catalog.KindEndpoint, `{"service":"s","path":"/a/x{id}"}`, catalog.ErrInvalid, "path"},
		{catalog.KindEndpoint, `{"service":"s","path":"/a/{}"}`, catalog.ErrInvalid, "path"},
		{catalog.KindEndpoint, `{"service":"s","path":"/a/*"}`, catalog.ErrInvalid, "path"},
		{catalog.KindEndpoint, `{"service":"s","path":"/","cost":-1}`, catalog.ErrInvalid, "cost"},
		{catalog.KindEndpoint, `{"service":"s","path":"/","cost":9007199254740992}`, catalog.ErrInvalid, "cost"},
		{catalog.KindEndpoint, `{"service":"s","path":"/","refund_on":["6xx"]}`, catalog.ErrInvalid, "refund_on[0]"},
		{catalog.KindEndpoint, `{"service":"s","path":"/","refund_on":["5xx","5xx"]}`, catalog.ErrInvalid, "refund_on[1]"},
		{catalog.KindPlan, `{"fee":{}}`, catalog.ErrInvalid, "fee.amount"},
		{catalog.KindPlan, `{"fee":{"amount":-1,"currency":"USD","period":"month"}}`, catalog.ErrInvalid, "fee.amount"},
		{catalog.KindPlan, `{"fee":{"amount":1,"currency":"USD","period":"fortnight"}}`, catalog.ErrInvalid, "fee.period"},
		{catalog.KindPlan, `{"included":{"Calls":1}}`, catalog.ErrInvalid, "included"},
		{catalog.KindPlan, `{"included":{"calls":-1}}`, catalog.ErrInvalid, "included.calls"},
		{catalog.KindPlan, `{"included":{"calls":"1"}}`, catalog.ErrMalformed, "included.calls"},
		{catalog.KindPlan, `{"overage":[{"unit_price":"1"}]}`, catalog.ErrInvalid, "overage[0].meter"},
		{catalog.KindPlan, `{"overage":[{"meter":"m"}]}`, catalog.ErrInvalid, "overage[0].unit_price"},
		{catalog.KindPlan, `{"overage":[{"meter":"m","unit_price":0.5}]}`, catalog.ErrMalformed, "overage[0].unit_price"},
		{catalog.KindPlan, `{"overage":[{"meter":"m","unit_price":"-1"}]}`, catalog.ErrInvalid, "overage[0].unit_price"},
		{catalog.KindPlan, `{"overage":[{"meter":"m","unit_price":"1."}]}`, catalog.ErrInvalid, "overage[0].unit_price"},
		{catalog.KindPlan, `{"overage":[{"meter":"m","unit_price":"0.0000000000001"}]}`, catalog.ErrInvalid, "overage[0].unit_price"},
		{catalog.KindPlan, `{"overage":[{"meter":"m","unit_price":"1"},{"meter":"m","up_to":5,"unit_price":"1"}]}`, catalog.ErrInvalid, "overage[0].up_to"},
		{catalog.KindPlan, `{"overage":[{"meter":"m","up_to":5,"unit_price":"1"},{"meter":"m","up_to":5,"unit_price":"1"},{"meter":"m","unit_price":"1"}]}`, catalog.ErrInvalid, "overage[1].up_to"},
		{catalog.KindRule, `{}`, catalog.ErrInvalid, "kind"},
		{catalog.KindRule, `{"kind":"rate"}`, catalog.ErrInvalid, "algorithm"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","limit":1,"window":"1s"}`, catalog.ErrInvalid, "subject"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":["tenant","tenant"],"limit":1,"window":"1s"}`, catalog.ErrInvalid, "subject[1]"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":["country"],"limit":1,"window":"1s"}`, catalog.ErrInvalid, "subject[0]"},
		{catalog.KindRule, `{"kind":"block","limit":0}`, catalog.ErrInvalid, "limit"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":[],"limit":1,"window":"1s","lease":{"units":2,"ttl":"1s"}}`, catalog.ErrInvalid, "lease.units"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":[],"limit":1,"window":"1s","lease":{"units":"1","ttl":"1s"}}`, catalog.ErrMalformed, "lease.units"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":[],"limit":1,"window":"1s","lease":{"ttl":"1s"}}`, catalog.ErrInvalid, "lease.units"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":[],"limit":1,"window":"1s","lease":{"units":1}}`, catalog.ErrInvalid, "lease.ttl"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":[],"limit":1,"window":"1s","lease":{"units":1,"ttl":"soon"}}`, catalog.ErrInvalid, "lease.ttl"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":[],"limit":1,"window":"1s","lease":{"units":1,"ttl":"1001ms"}}`, catalog.ErrInvalid, "lease.ttl"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":[],"limit":1,"window":"1s","lease":{"units":1,"ttl":"1s","size":1}}`, catalog.ErrMalformed, "lease.size"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":[],"limit":1,"window":"1s","soft":true,"lease":{"units":1,"ttl":"1s"}}`, catalog.ErrInvalid, "lease"},
		{catalog.KindRule, `{"kind":"block","lease":{"units":1,"ttl":"1s"}}`, catalog.ErrInvalid, "lease"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":[],"limit":1,"window":"1s","max_delay":"1s"}`, catalog.ErrInvalid, "max_delay"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"leaky_bucket","subject":[],"limit":1,"window":"1s","max_delay":"61s"}`, catalog.ErrInvalid, "max_delay"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"leaky_bucket","subject":[],"limit":1,"window":"1s","max_delay":"soon"}`, catalog.ErrInvalid, "max_delay"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"leaky_bucket","subject":[],"limit":10,"window":"1s","max_delay":"2s"}`, catalog.ErrInvalid, "max_delay"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"leaky_bucket","subject":[],"limit":10,"window":"1s","burst":19,"max_delay":"2s"}`, catalog.ErrInvalid, "burst"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"leaky_bucket","subject":[],"limit":3,"window":"1s","burst":1,"max_delay":"333.334ms"}`, catalog.ErrInvalid, "max_delay"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":[],"limit":1,"window":"1s","wallet":"prepaid"}`, catalog.ErrInvalid, "wallet"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"sliding_window_log","subject":[],"limit":10001,"window":"1s"}`, catalog.ErrInvalid, "limit"},
		{catalog.KindRule, `{"kind":"block","condition":""}`, catalog.ErrInvalid, "condition"},
		{catalog.KindRule, `{"kind":"block","condition":"` + strings.Repeat(" ", 4093) + `true"}`, catalog.ErrInvalid, "condition"},
		{catalog.KindRule, `{"kind":"wallet","subject":["tenant"]}`, catalog.ErrInvalid, "wallet"},
		{catalog.KindRule, `{"kind":"wallet","wallet":"none","subject":["tenant"]}`, catalog.ErrInvalid, "wallet"},
		{catalog.KindRule, `{"kind":"wallet","wallet":"prepaid","subject":["tenant"],"limit":0}`, catalog.ErrInvalid, "limit"},
		{catalog.KindRule, `{"kind":"wallet","wallet":"prepaid","subject":["tenant"],"period":{"unit":"day"}}`, catalog.ErrInvalid, "period"},
		{catalog.KindRule, `{"kind":"wallet","wallet":"renewable","subject":["tenant"],"period":{"unit":"day"}}`, catalog.ErrInvalid, "limit"},
		{catalog.KindRule, `{"kind":"wallet","wallet":"renewable","subject":["tenant"],"limit":1}`, catalog.ErrInvalid, "period"},
		{catalog.KindRule, `{"kind":"wallet","wallet":"prepaid","subject":["tenant","user"]}`, catalog.ErrInvalid, "subject"},
		{catalog.KindRule, `{"kind":"wallet","wallet":"prepaid","subject":["tenant"],"on_failure":"local"}`, catalog.ErrInvalid, "on_failure"},
		{catalog.KindRule, `{"kind":"wallet","wallet":"prepaid","subject":["tenant"],"window":"1s"}`, catalog.ErrInvalid, "window"},
		{catalog.KindRule, `{"kind":"block","window":"0s"}`, catalog.ErrInvalid, "window"},
		{catalog.KindRule, `{"kind":"quota","subject":["tenant"],"limit":1,"period":{"unit":"day"},"burst":0}`, catalog.ErrInvalid, "burst"},
		{catalog.KindRule, `{"kind":"quota","subject":["tenant"],"limit":1,"period":{"unit":"day"},"thresholds":[{}]}`, catalog.ErrInvalid, "thresholds[0].left"},
		{catalog.KindRule, `{"kind":"quota","subject":["tenant"],"limit":1,"period":{"unit":"day","count":99999999999}}`, catalog.ErrInvalid, "period.count"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":[],"limit":1,"window":"1s","priority":-99999999999}`, catalog.ErrInvalid, "priority"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":[],"limit":1,"window":"9999999h"}`, catalog.ErrInvalid, "window"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":[],"limit":2000000000,"window":"1h"}`, catalog.ErrInvalid, "burst"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":[],"limit":1,"window":"1s","match":{"tenant":"a b"}}`, catalog.ErrInvalid, "match.tenant"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":[],"limit":1,"window":"1s","match":{"networks":["203.0.113.9/24"]}}`, catalog.ErrInvalid, "match.networks[0]"},
		{catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":[],"limit":1,"window":"1s","match":{"networks":["203.0.113.9"]}}`, catalog.ErrInvalid, "match.networks[0]"},
	}
	for _, tt := range tests {
		_, err := catalog.Read(tt.kind, "x", []byte(tt.text))
		var faults *catalog.FaultError
		if !errors.Is(err, tt.err) || !errors.As(err, &faults) {
			t.Errorf("%s %.200s: %v, want %v", tt.kind, tt.text, err, tt.err)
			continue
		}
		found := false
		for _, f := range faults.Faults {
			found = found || f.Field == tt.field
		}
		if !found {
			t.Errorf("%s %.200s: %v, want a fault of %s", tt.kind, tt.text, err, tt.field)
		}
	}
}

// TestReadNamesTheSpelling guarantees that a host that no gateway matches and an
// origin that no browser sends are refused with the spelling to use, and that
// this spelling is accepted.
func TestReadNamesTheSpelling(t *testing.T) {
	t.Parallel()
	host := func(s string) string { return `{"upstream":"http://h","hosts":["ok",` + s + `]}` }
	origin := func(s string) string {
		return `{"upstream":"http://h","cors":{"allowed_origins":["https://ok",` + s + `]}}`
	}
	tests := []struct {
		text      func(s string) string
		field     string
		said, use string // use is empty: there is none to suggest
	}{
		{host, "hosts[1]", "API.example.org", "api.example.org"},
		{host, "hosts[1]", "api.example.org.", "api.example.org"},
		{host, "hosts[1]", "Api.Example.org.:8443", "api.example.org"},
		{host, "hosts[1]", "api.example.org:8443", "api.example.org"},
		{host, "hosts[1]", "[2001:DB8::1]", "[2001:db8::1]"},
		{host, "hosts[1]", "[2001:db8:0:0::1]", "[2001:db8::1]"},
		{host, "hosts[1]", "[2001:db8::1]:443", "[2001:db8::1]"},
		{host, "hosts[1]", "2001:DB8::1", "[2001:db8::1]"},
		{host, "hosts[1]", "[fe80::1%eth0]", "[fe80::1]"},
		{host, "hosts[1]", "api..", ""},
		{host, "hosts[1]", ".", ""},
		{host, "hosts[1]", "a:b:c", ""},
		{host, "hosts[1]", "[x]", ""},
		{host, "hosts[1]", "[127.0.0.1]", ""},
		{host, "hosts[1]", "[::1", ""},
		{origin, "cors.allowed_origins[1]", "https://App.example.org", "https://app.example.org"},
		{origin, "cors.allowed_origins[1]", "https://app.example.org:443", "https://app.example.org"},
		{origin, "cors.allowed_origins[1]", "http://app.example.org:80", "http://app.example.org"},
		{origin, "cors.allowed_origins[1]", "http://app.example.org:0080", "http://app.example.org"},
		{origin, "cors.allowed_origins[1]", "http://app.example.org:08443", "http://app.example.org:8443"},
		{origin, "cors.allowed_origins[1]", "https://[2001:DB8:0::1]:443", "https://[2001:db8::1]"},
		{origin, "cors.allowed_origins[1]", "https://[::FFFF:192.0.2.1]:8443", "https://[::ffff:c000:201]:8443"},
		{origin, "cors.allowed_origins[1]", "HTTPS://app.example.org", ""},
		{origin, "cors.allowed_origins[1]", "https://", ""},
	}
	for _, tt := range tests {
		_, err := catalog.Read(catalog.KindService, "x", []byte(tt.text(`"`+tt.said+`"`)))
		var faults *catalog.FaultError
		if !errors.As(err, &faults) || !errors.Is(err, catalog.ErrInvalid) || len(faults.Faults) != 1 || faults.Faults[0].Field != tt.field {
			t.Errorf("%s: %v, want a fault of %s", tt.said, err, tt.field)
			continue
		}
		if message := faults.Faults[0].Message; tt.use != "" && !strings.Contains(message, fmt.Sprintf("want %q as", tt.use)) {
			t.Errorf("%s %s, want it to suggest %s", tt.said, message, tt.use)
		}
		if tt.use == "" {
			continue
		}
		if _, err := catalog.Read(catalog.KindService, "x", []byte(tt.text(`"`+tt.use+`"`))); err != nil {
			t.Errorf("%s, which was suggested for %s: %v", tt.use, tt.said, err)
		}
	}
}

// TestReadNamesEveryFault guarantees that one answer names everything that is
// wrong with a rule, each field once.
func TestReadNamesEveryFault(t *testing.T) {
	t.Parallel()
	_, err := catalog.Read(catalog.KindRule, "x", []byte(`{"kind":"quota","mode":"on","subject":["user"],"limit":-1,"window":"1s","meter":"",
		"period":{"unit":"moon","zone":"Moon/Tycho"},"thresholds":[0],"condition":"","wallet":"prepaid","max_delay":"1s","on_failure":"local","valid_from":"soon"}`))
	var faults *catalog.FaultError
	if !errors.As(err, &faults) {
		t.Fatal(err)
	}
	var got []string
	for _, f := range faults.Faults {
		got = append(got, f.Field)
	}
	slices.Sort(got)
	want := []string{"condition", "limit", "max_delay", "meter", "mode", "on_failure", "period.unit", "period.zone", "subject", "thresholds[0]", "valid_from", "wallet", "window"}
	if !slices.Equal(got, want) {
		t.Errorf("faults of %q, want of %q", got, want)
	}
}

// TestPutCompilesConditions guarantees that no rule is kept whose condition the
// gateways cannot evaluate, and that the answer says where it is wrong, beside
// everything else that is.
func TestPutCompilesConditions(t *testing.T) {
	t.Parallel()
	c := catalog.New(catalogtest.NewMemory(t0), rand.Reader, condition.Compile)
	try := func(text string) error {
		_, err := c.Put(t.Context(), catalog.Put{Kind: catalog.KindRule, ID: "x", Text: []byte(text), Caller: catalogtest.Caller})
		return err
	}
	for _, tt := range []struct {
		text string
		want []string
	}{
		{`{"kind":"block","condition":"tenant == \"acme\" && cost"}`, []string{"condition: is no condition: 1:21: "}},
		{`{"kind":"block","condition":"tenant"}`, []string{"condition: is no condition: is string, want bool"}},
		{`{"kind":"block","condition":"tennant == \"\"","limit":1}`, []string{"limit: is set", "undeclared reference to 'tennant'"}},
	} {
		err := try(tt.text)
		for _, want := range tt.want {
			if !errors.Is(err, catalog.ErrInvalid) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q in it", tt.text, err, want)
			}
		}
	}
	if err := try(`{"kind":"block","condition":"tenant == \"acme\""}`); err != nil {
		t.Error(err)
	}
}

// FuzzRead guarantees that no text does harm, that every refusal is one of two
// errors with messages fit to be shown, and that what is accepted can be kept,
// shown, and put back.
func FuzzRead(f *testing.F) {
	for i, s := range catalogtest.Samples {
		f.Add(i, s.Text)
	}
	f.Add(10, `{"kind":"rate","algorithm":"gcra","subject":["ip"],"limit":1e3,"window":"1m","match":{"networks":["::/0"]},"valid_to":"2026-11-15T12:00:00+14:00"}`)
	kinds := catalog.Kinds()
	f.Fuzz(func(t *testing.T, n int, text string) {
		kind := kinds[uint(n)%uint(len(kinds))]
		body, err := catalog.Read(kind, "x", []byte(text))
		if err == nil {
			roundTrip(t, kind, body)
			return
		}
		if errors.Is(err, catalog.ErrMalformed) == errors.Is(err, catalog.ErrInvalid) || !utf8.ValidString(err.Error()) {
			t.Errorf("%s %q: %q", kind, text, err)
		}
	})
}
