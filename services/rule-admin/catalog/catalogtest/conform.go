package catalogtest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog"
)

// A Store is what the suite tests.
type Store interface {
	catalog.Store
	Audit(ctx context.Context, q catalog.Search) ([]catalog.Entry, error)
}

// Caller is who changes things in the suite.
var Caller = catalog.Caller{Actor: "ops", Role: "admin"}

// Any is the condition that forces.
var Any = catalog.Condition{Given: true, Any: true}

// Samples are bodies of every kind that refer to each other, in the order in
// which they can be put.
var Samples = []struct {
	Kind catalog.Kind
	ID   string
	Text string
}{
	{catalog.KindPlan, "gold", `{"name":"Gold","fee":{"amount":9900,"currency":"USD","period":"month"},"included":{"api-calls":100000},
		"overage":[{"meter":"api-calls","up_to":900000,"unit_price":"0.00001"},{"meter":"api-calls","unit_price":"0.000005"}]}`},
	{catalog.KindTenant, "acme", `{"name":"Acme","plan":"gold","zone":"Europe/Istanbul","currency":"USD"}`},
	{catalog.KindTenant, "globex", `{}`},
	{catalog.KindApplication, "web", `{"tenant":"acme","name":"Web"}`},
	{catalog.KindUser, "u1", `{"tenant":"acme","name":"Uma"}`},
	{catalog.KindAPIKey, "acme-1", `{"tenant":"acme","application":"web","user":"u1"}`},
	{catalog.KindService, "payments", `{"upstream":"http://127.0.0.1:9001","path_prefix":"/payments","strip_prefix":true,"hosts":[]}`},
	{catalog.KindEndpoint, "pay", `{"service":"payments","method":"POST","path":"/v1/pay","cost":1,"refund_on":["5xx","timeout"]}`},
	{catalog.KindRule, "acme-burst", `{"name":"…","enabled":true,"mode":"enforce","kind":"rate","algorithm":"gcra","subject":["tenant"],
		"match":{"tenant":"acme","service":"payments","endpoint":"pay"},"limit":30,"window":"60s","burst":10,"meter":"api-calls",
		"on_failure":"open","priority":0}`},
	{catalog.KindRule, "acme-month", `{"kind":"quota","algorithm":"quota","subject":["tenant"],"match":{"tenant":"acme","plan":"gold"},"limit":1000,
		"period":{"unit":"month","count":1,"alignment":"calendar","zone":"Europe/Istanbul"},"meter":"api-calls","on_failure":"closed",
		"thresholds":[80,100,{"left":10}]}`},
	{catalog.KindRule, "web-key", `{"kind":"block","match":{"application":"web","api_key":"acme-1"}}`},
}

// Seed puts the samples.
func Seed(t testing.TB, c *catalog.Catalog) {
	t.Helper()
	for _, s := range Samples {
		Put(t, c, s.Kind, s.ID, s.Text, catalog.Condition{})
	}
}

// Put puts an object and fails the test when that fails.
func Put(t testing.TB, c *catalog.Catalog, kind catalog.Kind, id, text string, condition catalog.Condition) catalog.Result {
	t.Helper()
	r, err := c.Put(t.Context(), put(kind, id, text, condition))
	if err != nil {
		t.Fatalf("put %s %s: %v", kind, id, err)
	}
	return r
}

func put(kind catalog.Kind, id, text string, condition catalog.Condition) catalog.Put {
	return catalog.Put{Kind: kind, ID: id, Text: []byte(text), Condition: condition, Caller: Caller, RequestID: "r-1"}
}

func remove(kind catalog.Kind, id string, condition catalog.Condition) catalog.Removal {
	return catalog.Removal{Kind: kind, ID: id, Condition: condition, Caller: Caller, RequestID: "r-2"}
}

// Conform runs the suite. open returns an empty store each time.
func Conform(t *testing.T, compile catalog.Compile, open func(t *testing.T) Store) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, s Store, c *catalog.Catalog)
	}{
		{"what is shown is what was put", showsWhatWasPut},
		{"a condition that does not hold changes nothing", conditions},
		{"versions rise across deletion", versionsRise},
		{"one of many replacements wins", oneWins},
		{"pages hold every object once", pages},
		{"pages hold every object once while others come and go", pagesUnderChange},
		{"a reference to nothing is refused", references},
		{"what is referred to is not deleted", inUse},
		{"an owner does not change under others", owners},
		{"nobody takes another one's traffic", rivals},
		{"every change has one entry in the audit", audited},
		{"an API key's secret is shown once", secrets},
		{"usage is made of tenants and what may count for them", counts},
		{"a key is found by its digest", keys},
		{"candidates are what may apply to a request", candidates},
		{"what is explained is what gateways match", explains},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			test.run(t, s, catalog.New(s, rand.Reader, compile))
		})
	}
}

func showsWhatWasPut(t *testing.T, _ Store, c *catalog.Catalog) {
	Seed(t, c)
	for _, s := range Samples {
		o, err := c.Object(t.Context(), s.Kind, s.ID)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		got := decode(t, text)
		for _, field := range []string{"id", "version", "changed_at", "changed_by"} {
			if _, ok := got[field]; !ok {
				t.Errorf("%s %s does not show %s", s.Kind, s.ID, field)
			}
			delete(got, field)
		}
		if want := decode(t, []byte(s.Text)); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s %s shows %v, want %v", s.Kind, s.ID, got, want)
		}
		if o.ChangedBy != Caller.Actor || o.ChangedAt.IsZero() {
			t.Errorf("%s %s was changed by %q at %v", s.Kind, s.ID, o.ChangedBy, o.ChangedAt)
		}
		// What is shown can be put back.
		Put(t, c, s.Kind, s.ID, string(text), Any)
	}
}

func decode(t *testing.T, text []byte) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func conditions(t *testing.T, s Store, c *catalog.Catalog) {
	const id = "acme"
	is := func(v ...int64) catalog.Condition { return catalog.Condition{Given: true, Versions: v} }
	absent := catalog.Condition{Absent: true}
	nothing := catalog.Condition{}
	want := func(err, want error, what string) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	try := func(condition catalog.Condition) error {
		_, err := c.Put(t.Context(), put(catalog.KindTenant, id, `{"name":"never"}`, condition))
		return err
	}
	want(try(is(1)), catalog.ErrStale, "replace what is not there")
	want(c.Delete(t.Context(), remove(catalog.KindTenant, id, nothing)), catalog.ErrNotFound, "delete what is not there")
	want(c.Delete(t.Context(), remove(catalog.KindTenant, id, is(1))), catalog.ErrNotFound, "delete a version of what is not there")

	first := Put(t, c, catalog.KindTenant, id, `{"name":"a"}`, absent)
	if !first.Created || first.Object.Version != 1 {
		t.Errorf("first put: created %v in version %d, want true in 1", first.Created, first.Object.Version)
	}
	want(try(nothing), catalog.ErrConditionRequired, "replace without a condition")
	want(try(absent), catalog.ErrStale, "create what is there")
	want(try(is(2)), catalog.ErrStale, "replace another version")
	want(try(is()), catalog.ErrStale, "replace a tag that is no version")
	want(c.Delete(t.Context(), remove(catalog.KindTenant, id, is(2))), catalog.ErrStale, "delete another version")
	if o, err := c.Object(t.Context(), catalog.KindTenant, id); err != nil || o.Version != 1 {
		t.Fatalf("after refusals: %+v, %v, want version 1 untouched", o, err)
	}
	second := Put(t, c, catalog.KindTenant, id, `{"name":"b"}`, is(7, 1))
	if second.Created || second.Object.Version != 2 {
		t.Errorf("second put: created %v in version %d, want false in 2: refusals take no revision", second.Created, second.Object.Version)
	}
	Put(t, c, catalog.KindTenant, id, `{"name":"c"}`, Any)
	if err := c.Delete(t.Context(), remove(catalog.KindTenant, id, is(3))); err != nil {
		t.Errorf("delete its version: %v", err)
	}
	if r := Put(t, c, catalog.KindTenant, id, `{}`, Any); !r.Created {
		t.Error("any version was not created where there was none")
	}
	entries, err := s.Audit(t.Context(), catalog.Search{Most: 100})
	if err != nil || len(entries) != 5 {
		t.Errorf("%d audit entries (%v), want 5: one for each change and none for a refusal", len(entries), err)
	}
}

// versionsRise is the producing side of case C4: a tombstone's version lies
// between those of the object before and after it.
func versionsRise(t *testing.T, s Store, c *catalog.Catalog) {
	last := int64(0)
	for range 5 {
		for _, condition := range []catalog.Condition{{}, Any} {
			if v := Put(t, c, catalog.KindTenant, "acme", `{}`, condition).Object.Version; v != last+1 {
				t.Fatalf("version %d after %d, want the next", v, last)
			}
			last++
		}
		if err := c.Delete(t.Context(), remove(catalog.KindTenant, "acme", catalog.Condition{})); err != nil {
			t.Fatal(err)
		}
		last++
	}
	entries, err := s.Audit(t.Context(), catalog.Search{Most: 100})
	if err != nil || int64(len(entries)) != last {
		t.Fatalf("%d entries (%v), want %d", len(entries), err, last)
	}
	for i, e := range entries {
		if e.Revision != last-int64(i) {
			t.Errorf("entry %d has revision %d, want %d: no gap, no repeat", i, e.Revision, last-int64(i))
		}
		if i > 0 && e.At.After(entries[i-1].At) {
			t.Errorf("revision %d was at %v, after the next one's %v", e.Revision, e.At, entries[i-1].At)
		}
	}
}

func oneWins(t *testing.T, _ Store, c *catalog.Catalog) {
	const clients = 100
	version := Put(t, c, catalog.KindTenant, "acme", `{}`, catalog.Condition{}).Object.Version
	var wg sync.WaitGroup
	errs := make([]error, clients)
	for i := range clients {
		wg.Go(func() {
			text := fmt.Sprintf(`{"name":"client %d"}`, i)
			_, errs[i] = c.Put(t.Context(), put(catalog.KindTenant, "acme", text, catalog.Condition{Given: true, Versions: []int64{version}}))
		})
	}
	wg.Wait()
	won := -1
	for i, err := range errs {
		switch {
		case err == nil && won >= 0:
			t.Errorf("clients %d and %d both replaced version %d", won, i, version)
		case err == nil:
			won = i
		case !errors.Is(err, catalog.ErrStale):
			t.Errorf("client %d: %v, want it to be stale", i, err)
		}
	}
	o, err := c.Object(t.Context(), catalog.KindTenant, "acme")
	if err != nil || won < 0 {
		t.Fatalf("client %d won (%v), want one", won, err)
	}
	if got, want := *o.Body.(*catalog.Tenant).Name, fmt.Sprintf("client %d", won); got != want || o.Version != version+1 { // a tenant
		t.Errorf("it is %q in version %d, want %q in %d", got, o.Version, want, version+1)
	}
}

// walk reads all pages of most objects each.
func walk(t *testing.T, c *catalog.Catalog, most int, between func()) []string {
	t.Helper()
	var ids []string
	for after := ""; ; {
		page, err := c.List(t.Context(), catalog.KindTenant, after, most)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			return ids
		}
		for _, o := range page {
			ids = append(ids, o.ID)
		}
		after = ids[len(ids)-1]
		between()
	}
}

func pages(t *testing.T, _ Store, c *catalog.Catalog) {
	want := []string{"-", ".a", "0", "A", "Z", "_", "a", "a-b", "a.b", "aA", "ab", "~"} // by bytes, whatever the locale
	for _, id := range slices.Backward(want) {
		Put(t, c, catalog.KindTenant, id, `{}`, catalog.Condition{})
	}
	for _, most := range []int{1, 5, 12, 500} {
		if got := walk(t, c, most, func() {}); !slices.Equal(got, want) {
			t.Errorf("in pages of %d: %q, want %q", most, got, want)
		}
	}
}

func pagesUnderChange(t *testing.T, _ Store, c *catalog.Catalog) {
	var stay []string
	for i := range 40 {
		id := fmt.Sprintf("m%02d", i*2)
		stay = append(stay, id)
		Put(t, c, catalog.KindTenant, id, `{}`, catalog.Condition{})
	}
	n := 0
	got := walk(t, c, 3, func() {
		for _, prefix := range []string{"a", "m", "z"} { // before, among and behind
			id := fmt.Sprintf("%s%02d", prefix, n*2+1)
			Put(t, c, catalog.KindTenant, id, `{}`, catalog.Condition{})
			if n%3 == 0 {
				if err := c.Delete(t.Context(), remove(catalog.KindTenant, id, catalog.Condition{})); err != nil {
					t.Fatal(err)
				}
			}
		}
		n++
		if n > 60 {
			t.Fatal("the list does not end")
		}
		Put(t, c, catalog.KindTenant, stay[n%len(stay)], `{"name":"changed meanwhile"}`, Any)
	})
	if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
		t.Errorf("ids came twice or out of order: %q", got)
	}
	for _, id := range stay {
		if !slices.Contains(got, id) {
			t.Errorf("%s was there all the time and is on no page", id)
		}
	}
}

func references(t *testing.T, _ Store, c *catalog.Catalog) {
	Seed(t, c)
	rate := func(match string) string {
		return `{"kind":"rate","algorithm":"gcra","subject":[],"limit":1,"window":"1s","match":` + match + `}`
	}
	tests := []struct {
		kind  catalog.Kind
		text  string
		field string
	}{
		{catalog.KindTenant, `{"plan":"nope"}`, "plan"},
		{catalog.KindApplication, `{"tenant":"nope"}`, "tenant"},
		{catalog.KindUser, `{"tenant":"nope"}`, "tenant"},
		{catalog.KindAPIKey, `{"tenant":"nope"}`, "tenant"},
		{catalog.KindAPIKey, `{"tenant":"acme","application":"nope"}`, "application"},
		{catalog.KindAPIKey, `{"tenant":"globex","application":"web"}`, "application"},
		{catalog.KindEndpoint, `{"service":"nope","path":"/"}`, "service"},
		{catalog.KindRule, rate(`{"tenant":"nope"}`), "match.tenant"},
		{catalog.KindRule, rate(`{"plan":"nope"}`), "match.plan"},
		{catalog.KindRule, rate(`{"application":"nope"}`), "match.application"},
		{catalog.KindRule, rate(`{"api_key":"nope"}`), "match.api_key"},
		{catalog.KindRule, rate(`{"service":"nope"}`), "match.service"},
		{catalog.KindRule, rate(`{"endpoint":"nope"}`), "match.endpoint"},
		{catalog.KindRule, rate(`{"tenant":"globex","application":"web"}`), "match.application"},
		{catalog.KindRule, rate(`{"tenant":"globex","api_key":"acme-1"}`), "match.api_key"},
	}
	for _, tt := range tests {
		_, err := c.Put(t.Context(), put(tt.kind, "new", tt.text, catalog.Condition{}))
		var faults *catalog.FaultError
		if !errors.As(err, &faults) || !errors.Is(err, catalog.ErrInvalid) || len(faults.Faults) != 1 || faults.Faults[0].Field != tt.field {
			t.Errorf("%s %s: %v, want invalid %s", tt.kind, tt.text, err, tt.field)
		}
	}
	Put(t, c, catalog.KindRule, "new", rate(`{"tenant":"acme","application":"web","api_key":"acme-1","user":"nobody knows","service":"payments","endpoint":"pay"}`), catalog.Condition{})
	Put(t, c, catalog.KindAPIKey, "new", `{"tenant":"globex","user":"nobody knows"}`, catalog.Condition{})
}

func inUse(t *testing.T, _ Store, c *catalog.Catalog) {
	Seed(t, c)
	tests := []struct {
		kind catalog.Kind
		id   string
		by   []string
	}{
		{catalog.KindPlan, "gold", []string{"rule/acme-month match.plan", "tenant/acme plan"}},
		{catalog.KindTenant, "acme", []string{
			"api_key/acme-1 tenant", "application/web tenant", "rule/acme-burst match.tenant", "rule/acme-month match.tenant", "user/u1 tenant",
		}},
		{catalog.KindApplication, "web", []string{"api_key/acme-1 application", "rule/web-key match.application"}},
		{catalog.KindAPIKey, "acme-1", []string{"rule/web-key match.api_key"}},
		{catalog.KindService, "payments", []string{"endpoint/pay service", "rule/acme-burst match.service"}},
		{catalog.KindEndpoint, "pay", []string{"rule/acme-burst match.endpoint"}},
	}
	for _, tt := range tests {
		err := c.Delete(t.Context(), remove(tt.kind, tt.id, catalog.Condition{}))
		var used *catalog.InUseError
		if !errors.As(err, &used) {
			t.Errorf("delete %s %s: %v, want it to be in use", tt.kind, tt.id, err)
			continue
		}
		var by []string
		for _, r := range used.Referrers {
			by = append(by, fmt.Sprintf("%s/%s %s", r.Kind, r.ID, r.Field))
		}
		if !slices.Equal(by, tt.by) || used.More != 0 {
			t.Errorf("%s %s is used by %q and %d more, want %q", tt.kind, tt.id, by, used.More, tt.by)
		}
	}
	for i := range 30 {
		Put(t, c, catalog.KindUser, fmt.Sprintf("many-%02d", i), `{"tenant":"globex"}`, catalog.Condition{})
	}
	var used *catalog.InUseError
	err := c.Delete(t.Context(), remove(catalog.KindTenant, "globex", catalog.Condition{}))
	if !errors.As(err, &used) || len(used.Referrers) != catalog.MaxNamed || used.More != 10 || !strings.Contains(err.Error(), "and 10 more") {
		t.Errorf("delete what 30 refer to: %v, want %d named and 10 more", err, catalog.MaxNamed)
	}
	// Letting go of it frees it; so does deleting from the leaves.
	Put(t, c, catalog.KindRule, "web-key", `{"kind":"block"}`, Any)
	for _, s := range slices.Backward(Samples) {
		if s.ID == "globex" {
			continue
		}
		if err := c.Delete(t.Context(), remove(s.Kind, s.ID, catalog.Condition{})); err != nil {
			t.Errorf("delete %s %s: %v", s.Kind, s.ID, err)
		}
	}
}

func owners(t *testing.T, _ Store, c *catalog.Catalog) {
	Seed(t, c)
	Put(t, c, catalog.KindService, "search", `{"upstream":"http://127.0.0.1:9002"}`, catalog.Condition{})
	tests := []struct {
		kind  catalog.Kind
		id    string
		text  string
		field string
	}{
		{catalog.KindApplication, "web", `{"tenant":"globex"}`, "tenant"},
		{catalog.KindAPIKey, "acme-1", `{"tenant":"globex"}`, "tenant"},
		{catalog.KindAPIKey, "acme-1", `{"tenant":"acme"}`, "application"},
		{catalog.KindEndpoint, "pay", `{"service":"search","path":"/v1/pay"}`, "service"},
	}
	for _, tt := range tests {
		_, err := c.Put(t.Context(), put(tt.kind, tt.id, tt.text, Any))
		var used *catalog.InUseError
		if !errors.As(err, &used) || used.Field != tt.field {
			t.Errorf("%s %s becomes %s: %v, want it to be in use for its %s", tt.kind, tt.id, tt.text, err, tt.field)
		}
	}
	Put(t, c, catalog.KindUser, "u1", `{"tenant":"globex"}`, Any) // nobody refers to a user
	Put(t, c, catalog.KindApplication, "web", `{"tenant":"acme","name":"renamed"}`, Any)
}

func rivals(t *testing.T, _ Store, c *catalog.Catalog) {
	Seed(t, c)
	for id, text := range map[string]string{
		"hosts":    `{"upstream":"http://a","path_prefix":"/payments","hosts":["a.example.org","b.example.org"]}`, // a named host beats any
		"disjoint": `{"upstream":"http://a","path_prefix":"/payments","hosts":["c.example.org"]}`,
		"longer":   `{"upstream":"http://a","path_prefix":"/payments/v2"}`,
		"root":     `{"upstream":"http://a","path_prefix":"/"}`,
		"brace-a":  `{"upstream":"http://a","path_prefix":"/{a}"}`, // a prefix has no parameters
		"brace-b":  `{"upstream":"http://a","path_prefix":"/{b}"}`,
	} {
		Put(t, c, catalog.KindService, id, text, catalog.Condition{})
		Put(t, c, catalog.KindService, id, text, Any) // itself is no rival
	}
	for id, text := range map[string]string{
		"get":     `{"service":"payments","method":"GET","path":"/v1/pay"}`,
		"any":     `{"service":"payments","path":"/v1/pay"}`,
		"case":    `{"service":"payments","method":"POST","path":"/v1/Pay"}`,
		"item":    `{"service":"payments","method":"GET","path":"/v1/pay/{id}/lines/{line}"}`,
		"literal": `{"service":"payments","method":"GET","path":"/v1/pay/id/lines/{line}"}`,
		"other":   `{"service":"hosts","method":"POST","path":"/v1/pay"}`,
		"top":     `{"service":"payments","path":"/"}`,
	} {
		Put(t, c, catalog.KindEndpoint, id, text, catalog.Condition{})
		Put(t, c, catalog.KindEndpoint, id, text, Any)
	}
	tests := []struct {
		kind    catalog.Kind
		id      string
		text    string
		message string
	}{
		{catalog.KindService, "new", `{"upstream":"http://b","path_prefix":"/payments"}`, "path_prefix: is already that of services/payments"},
		{catalog.KindService, "new", `{"upstream":"http://b","path_prefix":"/payments","hosts":["x.example.org","b.example.org"]}`, "path_prefix: is already that of services/hosts"},
		{catalog.KindService, "new", `{"upstream":"http://b","path_prefix":"/payments","hosts":["c.example.org","b.example.org"]}`, "path_prefix: is already that of services/disjoint"},
		{catalog.KindService, "new", `{"upstream":"http://b"}`, "path_prefix: is already that of services/root"},
		{catalog.KindService, "new", `{"upstream":"http://b","hosts":[],"path_prefix":""}`, "path_prefix: is already that of services/root"},
		{catalog.KindService, "longer", `{"upstream":"http://b","path_prefix":"/payments"}`, "path_prefix: is already that of services/payments"},
		{catalog.KindEndpoint, "new", `{"service":"payments","method":"POST","path":"/v1/pay"}`, "path: is already that of endpoints/pay"},
		{catalog.KindEndpoint, "new", `{"service":"payments","method":"","path":"/v1/pay"}`, "path: is already that of endpoints/any"},
		{catalog.KindEndpoint, "new", `{"service":"payments","path":"/"}`, "path: is already that of endpoints/top"},
		{catalog.KindEndpoint, "new", `{"service":"payments","method":"GET","path":"/v1/pay/{payment}/lines/{n}"}`, "path: is already that of endpoints/item"},
		{catalog.KindEndpoint, "get", `{"service":"payments","method":"POST","path":"/v1/pay"}`, "path: is already that of endpoints/pay"},
	}
	for _, tt := range tests {
		_, err := c.Put(t.Context(), put(tt.kind, tt.id, tt.text, Any))
		var faults *catalog.FaultError
		if !errors.As(err, &faults) || !errors.Is(err, catalog.ErrConflict) || len(faults.Faults) != 1 || faults.Faults.Error() != tt.message {
			t.Errorf("%s %s: %v, want a conflict: %s", tt.kind, tt.text, err, tt.message)
		}
	}
}

func audited(t *testing.T, s Store, c *catalog.Catalog) {
	created := Put(t, c, catalog.KindTenant, "acme", `{"name":"one"}`, catalog.Condition{}).Object
	replaced := Put(t, c, catalog.KindTenant, "acme", `{"name":"two"}`, Any).Object
	if err := c.Delete(t.Context(), remove(catalog.KindTenant, "acme", Any)); err != nil {
		t.Fatal(err)
	}
	Put(t, c, catalog.KindPlan, "acme", `{}`, catalog.Condition{})
	entries, err := s.Audit(t.Context(), catalog.Search{Kind: catalog.KindTenant, ObjectID: "acme", Actor: "ops", Most: 10})
	if err != nil || len(entries) != 3 {
		t.Fatalf("%d entries (%v), want 3", len(entries), err)
	}
	show := func(o *catalog.Object) string {
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	tests := []struct {
		action        catalog.Action
		before, after string
		request       string
	}{
		{catalog.Delete, show(replaced), "null", "r-2"},
		{catalog.Replace, show(created), show(replaced), "r-1"},
		{catalog.Create, "null", show(created), "r-1"},
	}
	ids := map[string]bool{}
	for i, want := range tests {
		e := entries[i]
		if e.Action != want.action || string(e.Before) != want.before || string(e.After) != want.after || e.RequestID != want.request ||
			e.Actor != "ops" || e.Role != "admin" || e.Kind != catalog.KindTenant || e.ObjectID != "acme" {
			t.Errorf("entry %d is %+v (%s → %s), want %+v", i, e, e.Before, e.After, want)
		}
		ids[e.ID] = true
	}
	if len(ids) != 3 {
		t.Errorf("ids %v, want three", ids)
	}
	if older, err := s.Audit(t.Context(), catalog.Search{Before: entries[0].Revision, Most: 1}); err != nil || len(older) != 1 || older[0].ID != entries[1].ID {
		t.Errorf("the page behind the newest begins with %+v (%v), want %+v", older, err, entries[1])
	}
	for _, q := range []catalog.Search{{Kind: catalog.KindUser, Most: 9}, {ObjectID: "x", Most: 9}, {Actor: "x", Most: 9}} {
		if none, err := s.Audit(t.Context(), q); err != nil || len(none) > 0 {
			t.Errorf("%+v finds %d entries (%v), want none", q, len(none), err)
		}
	}
}

func secrets(t *testing.T, s Store, c *catalog.Catalog) {
	Put(t, c, catalog.KindTenant, "acme", `{}`, catalog.Condition{})
	first := Put(t, c, catalog.KindAPIKey, "k", `{"tenant":"acme"}`, catalog.Condition{})
	again := Put(t, c, catalog.KindAPIKey, "k", `{"tenant":"acme","user":"u"}`, Any)
	other := Put(t, c, catalog.KindAPIKey, "l", `{"tenant":"acme"}`, catalog.Condition{})
	if !strings.HasPrefix(first.Secret, "psk_") || len(first.Secret) < 4+22 || first.Secret == other.Secret {
		t.Errorf("secrets %q and %q, want two of 128 bits or more", first.Secret, other.Secret)
	}
	if again.Secret != "" || string(again.Object.Kept.Digest) != string(first.Object.Kept.Digest) || len(first.Object.Kept.Digest) != 32 {
		t.Errorf("replacing showed %q and made the digest %x of %x", again.Secret, again.Object.Kept.Digest, first.Object.Kept.Digest)
	}
	o, err := c.Object(t.Context(), catalog.KindAPIKey, "k")
	if err != nil || string(o.Kept.Digest) != string(first.Object.Kept.Digest) {
		t.Errorf("kept digest %x (%v), want %x", o.Kept.Digest, err, first.Object.Kept.Digest)
	}
	entries, err := s.Audit(t.Context(), catalog.Search{Most: 100})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(entries)
	if err != nil {
		t.Fatal(err)
	}
	shown, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{first.Secret, other.Secret, fmt.Sprintf("%x", first.Object.Kept.Digest)} {
		if strings.Contains(string(text), secret) || strings.Contains(string(shown), secret) {
			t.Errorf("%s is in the audit or shown again", secret)
		}
	}
	if strings.Contains(string(text), "digest") || strings.Contains(string(shown), "digest") {
		t.Error("a digest is in the audit or shown")
	}
}

func idsOf(objects []*catalog.Object) []string {
	ids := []string{}
	for _, o := range objects {
		ids = append(ids, o.ID)
	}
	return ids
}

// counts: a page has its tenants in order and each quota and wallet that may
// count for one of them, whole, and no other rule.
func counts(t *testing.T, s Store, c *catalog.Catalog) {
	Seed(t, c)
	Put(t, c, catalog.KindTenant, "Zeta", `{"zone":"Asia/Tokyo"}`, catalog.Condition{})
	for id, text := range map[string]string{
		"all-month":     `{"kind":"quota","subject":["tenant"],"limit":5,"period":{"unit":"month"}}`,
		"globex-wallet": `{"kind":"wallet","wallet":"prepaid","subject":["tenant"],"match":{"tenant":"globex"},"meter":"credits"}`,
		"all-rate":      `{"kind":"rate","algorithm":"gcra","subject":["tenant"],"limit":5,"window":"1s"}`,
		"gold-month":    `{"kind":"quota","subject":["tenant"],"match":{"plan":"gold"},"limit":5,"period":{"unit":"month"}}`,
	} {
		Put(t, c, catalog.KindRule, id, text, catalog.Condition{})
	}
	for _, tt := range []struct {
		after          string
		most           int
		only           string
		tenants, rules []string
	}{
		{"", 10, "", []string{"Zeta", "acme", "globex"}, []string{"acme-month", "all-month", "globex-wallet", "gold-month"}},
		{"", 2, "", []string{"Zeta", "acme"}, []string{"acme-month", "all-month", "gold-month"}},
		{"acme", 10, "", []string{"globex"}, []string{"all-month", "globex-wallet", "gold-month"}},
		{"globex", 10, "", []string{}, []string{"all-month", "gold-month"}},
		{"", 1, "acme", []string{"acme"}, []string{"acme-month", "all-month", "gold-month"}},
		{"", 1, "nobody", []string{}, []string{"all-month", "gold-month"}},
	} {
		got, err := s.Counting(t.Context(), tt.after, tt.most, tt.only)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(idsOf(got.Tenants), tt.tenants) || !slices.Equal(idsOf(got.Rules), tt.rules) || len(got.Granted) != 0 {
			t.Errorf("behind %q, %d or only %q: tenants %q, rules %q, granted %v, want %q and %q",
				tt.after, tt.most, tt.only, idsOf(got.Tenants), idsOf(got.Rules), got.Granted, tt.tenants, tt.rules)
		}
		for _, o := range slices.Concat(got.Tenants, got.Rules) {
			is, err := s.Object(t.Context(), o.Kind, o.ID)
			if err != nil || !sameObject(t, is, o) {
				t.Errorf("%s %s is %+v, and %+v (%v) to everybody else", o.Kind, o.ID, o, is, err)
			}
		}
	}
}

func sameObject(t *testing.T, a, b *catalog.Object) bool {
	t.Helper()
	text := func(o *catalog.Object) string {
		shown, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		kept, err := json.Marshal(o.Kept)
		if err != nil {
			t.Fatal(err)
		}
		return string(o.Kind) + string(shown) + string(kept)
	}
	return text(a) == text(b)
}

// keys: the digest of a secret finds its key and no other.
func keys(t *testing.T, s Store, c *catalog.Catalog) {
	Seed(t, c)
	secret := Put(t, c, catalog.KindAPIKey, "acme-2", `{"tenant":"acme"}`, catalog.Condition{}).Secret
	digest := sha256.Sum256([]byte(secret))
	if o, err := s.KeyOf(t.Context(), digest[:]); err != nil || o == nil || o.ID != "acme-2" || o.Kind != catalog.KindAPIKey {
		t.Errorf("KeyOf = %+v, %v, want acme-2", o, err)
	}
	digest[0]++
	if o, err := s.KeyOf(t.Context(), digest[:]); err != nil || o != nil {
		t.Errorf("KeyOf of another secret = %+v, %v, want none", o, err)
	}
}

// candidates: what is near a request is a tenant with the endpoints of a
// service, and the rules whose owners hold; those that hold further come first.
func candidates(t *testing.T, s Store, c *catalog.Catalog) {
	Seed(t, c)
	Put(t, c, catalog.KindEndpoint, "refund", `{"service":"payments","path":"/v1/refund"}`, catalog.Condition{})
	Put(t, c, catalog.KindService, "search", `{"upstream":"http://127.0.0.1:9002","path_prefix":"/search"}`, catalog.Condition{})
	Put(t, c, catalog.KindEndpoint, "find", `{"service":"search","path":"/find"}`, catalog.Condition{})
	for id, match := range map[string]string{
		"all": `{}`, "a-search": `{"service":"search"}`, "pays": `{"service":"payments","endpoint":"pay"}`, "gold": `{"plan":"gold"}`,
		"globex": `{"tenant":"globex"}`, "u1": `{"user":"u1"}`, "u2": `{"user":"u2"}`,
	} {
		Put(t, c, catalog.KindRule, id, `{"kind":"block","match":`+match+`}`, catalog.Condition{})
	}
	for _, tt := range []struct {
		tenant, service string
		known, served   bool
		endpoints       []string
	}{
		{"acme", "payments", true, true, []string{"pay", "refund"}},
		{"nobody", "search", false, true, []string{"find"}},
		{"globex", "", true, false, []string{}},
		{"globex", "nothing", true, false, []string{}},
	} {
		near, err := s.Surroundings(t.Context(), tt.tenant, tt.service)
		if err != nil {
			t.Fatal(err)
		}
		got := idsOf(near.Endpoints)
		slices.Sort(got)
		if (near.Service != nil) != tt.served || tt.served && near.Service.ID != tt.service {
			t.Errorf("the service %q is %+v", tt.service, near.Service)
		}
		if (near.Tenant != nil) != tt.known || tt.known && near.Tenant.ID != tt.tenant || !slices.Equal(got, tt.endpoints) {
			t.Errorf("near %q and %q are %+v and %q, want %q", tt.tenant, tt.service, near.Tenant, got, tt.endpoints)
		}
	}
	acme := rule.Request{Tenant: "acme", Plan: "gold", Application: "web", User: "u1", APIKey: "acme-1", Service: "payments", Endpoint: "pay"}
	stranger := rule.Request{Tenant: "stranger", Service: "search"}
	for _, tt := range []struct {
		name  string
		q     rule.Request
		extra string
		most  int
		want  []string
	}{
		{"those that hold come first", acme, "", 20, []string{"acme-burst", "acme-month", "all", "gold", "pays", "u1", "web-key", "a-search"}},
		{"and are no more than asked for", acme, "", 3, []string{"acme-burst", "acme-month", "all"}},
		{"the one that is asked for is among them", acme, "globex", 3, []string{"globex", "acme-burst", "acme-month"}},
		{"and is there once", acme, "all", 3, []string{"all", "acme-burst", "acme-month"}},
		{"a rule that is not there is not", acme, "none", 2, []string{"acme-burst", "acme-month"}},
		{"a request without owners has no owner's rules", stranger, "", 20, []string{"a-search", "all", "gold", "pays"}},
	} {
		list, err := s.Candidates(t.Context(), &tt.q, tt.extra, tt.most)
		if err != nil || !slices.Equal(idsOf(list), tt.want) {
			t.Errorf("%s: candidates %q, %v, want %q", tt.name, idsOf(list), err, tt.want)
		}
	}
}

// explains: of random rules and random requests, the winners are those that
// gateways find: the best of each group among all rules that match. Every rule
// that could have applied is there, and those that lost say why.
func explains(t *testing.T, _ Store, c *catalog.Catalog) {
	seed := mathrand.Uint64()
	t.Logf("seed %d", seed)
	r := random{mathrand.New(mathrand.NewPCG(seed, 0))}
	Seed(t, c)
	Put(t, c, catalog.KindApplication, "ios", `{"tenant":"acme"}`, catalog.Condition{})
	secret := Put(t, c, catalog.KindAPIKey, "acme-2", `{"tenant":"acme","application":"web"}`, catalog.Condition{}).Secret
	Put(t, c, catalog.KindEndpoint, "refund", `{"service":"payments","path":"/v1/refund/{id}","cost":3}`, catalog.Condition{})
	for i := range 150 {
		Put(t, c, catalog.KindRule, fmt.Sprintf("r%03d", i), r.rule(), catalog.Condition{})
	}
	stored, err := c.List(t.Context(), catalog.KindRule, "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	won, lost := 0, 0
	for range 60 {
		q, question := r.question(t, secret)
		got, err := c.Explain(t.Context(), question, now)
		if err != nil {
			t.Fatal(err)
		}
		if got.Plan != q.Plan || got.Endpoint != q.Endpoint || got.APIKey != q.APIKey || got.Cost != q.Cost {
			t.Fatalf("%+v is explained as %+v", q, got)
		}
		want := winners(t, stored, &q, now)
		agree(t, &q, got, want)
		won += len(want)
		lost += len(got.Candidates) - len(want)
	}
	if won < 60 || lost < 60 {
		t.Errorf("%d won and %d lost: the generator no longer tests both", won, lost)
	}
}

// agree wants an explanation to have the winners and no others.
func agree(t *testing.T, q *rule.Request, got *catalog.Explanation, want map[string]bool) {
	t.Helper()
	candidates := map[string]bool{}
	for _, c := range got.Candidates {
		candidates[c.RuleID] = true
		if c.Won != want[c.RuleID] || c.Won == (len(c.Reasons) > 0) {
			t.Errorf("%+v: %s won %v for %+v, and to a gateway that is %v", q, c.RuleID, c.Won, c.Reasons, want[c.RuleID])
		}
		for _, r := range c.Reasons {
			if r.BeatenBy != "" && !want[r.BeatenBy] {
				t.Errorf("%s lost to %s, which did not win", c.RuleID, r.BeatenBy)
			}
		}
	}
	for id := range want {
		if !candidates[id] {
			t.Errorf("%+v: a gateway finds %s, which is no candidate", q, id)
		}
	}
	if len(got.Groups) != len(want) || got.Omitted || got.BlockedBy != "" && !want[got.BlockedBy] {
		t.Errorf("%+v: %d groups, omitted %v, blocked by %q, want %d of them", q, len(got.Groups), got.Omitted, got.BlockedBy, len(want))
	}
}

// random makes rules and requests of the few values that the suite has.
type random struct{ *mathrand.Rand }

func (r random) pick(of ...string) string { return of[r.IntN(len(of))] }

// rule is one as it is put.
func (r random) rule() string {
	var match []string
	for _, values := range [][]string{
		{"tenant", "acme", "globex"}, {"plan", "gold"}, {"user", "u1", "u2"}, {"service", "payments"}, {"endpoint", "pay", "refund"},
	} {
		if r.IntN(4) == 0 {
			match = append(match, fmt.Sprintf("%q:%q", values[0], r.pick(values[1:]...)))
		}
	}
	if !strings.Contains(strings.Join(match, ","), "globex") { // which has neither application nor key
		switch r.IntN(6) {
		case 0, 1:
			match = append(match, fmt.Sprintf(`"application":%q`, r.pick("web", "ios")))
		case 2:
			match = append(match, `"api_key":"acme-2"`)
		}
	}
	if r.IntN(5) == 0 {
		match = append(match, fmt.Sprintf(`"networks":[%q]`, r.pick("203.0.113.0/24", "198.51.100.0/24", "2001:db8::/32")))
	}
	kind := r.pick(
		`"kind":"rate","algorithm":"gcra","limit":5,"window":"1s","subject":["tenant"]`,
		`"kind":"rate","algorithm":"gcra","limit":5,"window":"1s","subject":["tenant","user"]`,
		`"kind":"rate","algorithm":"fixed_window","limit":5,"window":"60s","subject":["ip"]`,
		`"kind":"quota","limit":5,"subject":["tenant"],"period":{"unit":"month"}`,
		`"kind":"wallet","wallet":"prepaid","subject":["tenant"]`,
		`"kind":"block"`)
	return fmt.Sprintf(`{%s,"match":{%s},"priority":%d,"enabled":%v,"mode":%q%s}`, kind, strings.Join(match, ","), r.IntN(2), r.IntN(8) > 0,
		r.pick("enforce", "enforce", "enforce", "shadow"), r.pick("", "", "", `,"condition":"method == 'POST'"`, `,"valid_to":"2026-01-01T00:00:00Z"`))
}

// question is a request as rules see it, and as it is asked about.
func (r random) question(t *testing.T, secret string) (rule.Request, catalog.Question) {
	t.Helper()
	q := rule.Request{
		Tenant: r.pick("acme", "acme", "globex", "stranger", ""), Application: r.pick("web", "ios", ""), User: r.pick("u1", "u2", ""),
		Service: r.pick("payments", "payments", ""), Method: r.pick("POST", "GET"), Path: r.pick("/v1/pay", "/v1/refund/7", "/v1/else", ""), Cost: 1,
	}
	address := r.pick("203.0.113.9", "198.51.100.7", "2001:db8:1:2:3::4", "")
	question, err := catalog.ReadQuestion(fmt.Appendf(nil, `{"tenant":%q,"application":%q,"user":%q,"service":%q,"method":%q,"path":%q,"client_ip":%q}`,
		q.Tenant, q.Application, q.User, q.Service, q.Method, q.Path, address))
	if err != nil {
		t.Fatal(err)
	}
	if q.Tenant == "acme" && q.Application == "web" && r.IntN(3) == 0 {
		question.Secret, q.APIKey = secret, "acme-2"
	}
	if q.Tenant == "acme" {
		q.Plan = "gold"
	}
	switch {
	case q.Service == "":
	case q.Path == "/v1/refund/7":
		q.Endpoint, q.Cost = "refund", 3
	case q.Path == "/v1/pay" && q.Method == "POST":
		q.Endpoint = "pay"
	}
	q.Address = question.Request.Address
	return q, question
}

// winners are the rules that a gateway would find.
func winners(t *testing.T, stored []*catalog.Object, q *rule.Request, now time.Time) map[string]bool {
	t.Helper()
	best := map[rule.Group]*rule.Rule{}
	for _, o := range stored {
		body := o.Body.(*catalog.Rule) // a rule's body
		r, faults := body.Resolve(o.ID)
		if len(faults) > 0 {
			t.Fatal(faults)
		}
		if body.Condition != nil {
			r.Condition = posts{}
		}
		if r.Matches(q, now) && (best[r.Group()] == nil || r.Beats(best[r.Group()])) {
			best[r.Group()] = &r
		}
	}
	out := map[string]bool{}
	for _, r := range best {
		out[r.ID] = true
	}
	return out
}

// posts is the condition that the suite uses.
type posts struct{}

// Text is the condition.
func (posts) Text() string { return "method == 'POST'" }

// Holds is as it says.
func (posts) Holds(q *rule.Request) bool { return q.Method == "POST" }
