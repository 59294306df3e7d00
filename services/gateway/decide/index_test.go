package decide_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// t0 is an ordinary instant.
var t0 = time.Date(2026, time.November, 30, 12, 0, 0, 0, time.UTC)

// t0Address is an ordinary client.
var t0Address = netip.MustParseAddr("203.0.113.9")

// TestIndexAgreesWithALinearSearch guarantees that the index finds exactly the
// rules that looking at every rule finds: the same winner in every group, after
// any history of changes, for any request, with conditions and without.
func TestIndexAgreesWithALinearSearch(t *testing.T) {
	t.Parallel()

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	reach := map[string]int{}
	for range 25 {
		book, all := decide.NewBook(), map[string]*rule.Rule{}
		version := int64(0)
		for range 12 {
			var changes []decide.Change
			for range rng.IntN(40) {
				version++
				id := fmt.Sprintf("r%d", rng.IntN(60))
				if rng.IntN(4) == 0 {
					delete(all, id)
					changes = append(changes, decide.Change{Kind: decide.RuleKind, ID: id, Version: version})
					continue
				}
				all[id] = randomRule(rng, id)
				changes = append(changes, decide.Change{Kind: decide.RuleKind, ID: id, Version: version, Object: all[id]})
			}
			book.Apply(changes)
			for range 60 {
				q := randomRequest(rng)
				now := t0.Add(time.Duration(rng.IntN(5)-2) * time.Hour)
				got, want := book.Current().Winners(&q, now), linear(all, &q, now)
				if diff := cmp.Diff(ids(want), ids(got)); diff != "" {
					t.Fatalf("%+v at %v (-linear +index):\n%s", q, now, diff)
				}
				reach["winners"] += len(got)
				for _, r := range got {
					if len(r.Match.Networks) > 0 {
						reach["by network"]++
					}
					if r.Match.APIKey != "" && r.Match.Endpoint != "" {
						reach["by several selectors"]++
					}
					if r.Condition != nil {
						reach["by a condition"]++
					}
				}
			}
		}
	}
	for _, what := range []string{"winners", "by network", "by several selectors", "by a condition"} {
		if reach[what] < 200 {
			t.Errorf("%d rules won %s: the generator no longer reaches them", reach[what], what)
		}
	}
}

// linear is the specification: look at every rule, and let those of a group
// compete.
func linear(all map[string]*rule.Rule, q *rule.Request, now time.Time) []*rule.Rule {
	best := map[rule.Group]*rule.Rule{}
	for _, r := range all {
		if !r.Matches(q, now) {
			continue
		}
		if b := best[r.Group()]; b == nil || r.Beats(b) {
			best[r.Group()] = r
		}
	}
	var won []*rule.Rule
	for _, r := range best {
		won = append(won, r)
	}
	slices.SortFunc(won, func(a, b *rule.Rule) int { return strings.Compare(a.ID, b.ID) })
	return won
}

func ids(rules []*rule.Rule) []string {
	out := []string{}
	for _, r := range rules {
		out = append(out, r.ID)
	}
	return out
}

func maybe(rng *rand.Rand, values ...string) string {
	if rng.IntN(3) > 0 {
		return ""
	}
	return values[rng.IntN(len(values))]
}

func randomRule(rng *rand.Rand, id string) *rule.Rule {
	r := &rule.Rule{
		ID: id, Enabled: rng.IntN(10) > 0, Mode: rule.Enforce, Kind: rule.Rate, Algorithm: rule.GCRA,
		Subject: rule.Subject(rng.IntN(32)), Meter: []string{"api-calls", "tokens"}[rng.IntN(2)],
		Window: time.Duration(1+rng.IntN(2)) * time.Minute, Limit: 10, Burst: 10, Priority: int32(rng.IntN(3)),
		Match: rule.Match{
			Tenant: maybe(rng, "acme", "globex"), Plan: maybe(rng, "gold", "free"), Application: maybe(rng, "web", "app"),
			User: maybe(rng, "u1", "u2"), APIKey: maybe(rng, "k1", "k2"),
			Service: maybe(rng, "pay", "search"), Endpoint: maybe(rng, "e1", "e2"),
		},
	}
	if rng.IntN(2) == 0 { // few subjects, so that rules meet in groups
		r.Subject = []rule.Subject{0, rule.Tenant, rule.IP}[rng.IntN(3)]
	}
	if rng.IntN(4) == 0 {
		r.Mode = rule.Shadow
	}
	switch rng.IntN(6) {
	case 0:
		r.Kind, r.Algorithm = rule.Block, rule.NoAlgorithm
	case 1:
		r.Kind, r.Algorithm, r.Window = rule.Quota, rule.CalendarQuota, 0
		r.Period = &period.Spec{Unit: period.Month, Count: 1, Alignment: period.Calendar}
	}
	for range rng.IntN(3) {
		networks := []string{"203.0.113.0/24", "203.0.113.9/32", "203.0.113.77/24", netip.PrefixFrom(netip.IPv4Unspecified(), 0).String(), "2001:db8::/32", "2001:db8:1:2::/64", "::/0"}
		r.Match.Networks = append(r.Match.Networks, netip.MustParsePrefix(networks[rng.IntN(len(networks))]))
	}
	if rng.IntN(4) == 0 {
		r.Condition = dearer(rng.IntN(6))
	}
	if rng.IntN(5) == 0 {
		r.ValidFrom = t0.Add(time.Duration(rng.IntN(3)-1) * time.Hour)
	}
	if rng.IntN(5) == 0 {
		r.ValidTo = t0.Add(time.Duration(rng.IntN(3)-1) * time.Hour)
	}
	return r
}

func randomRequest(rng *rand.Rand) rule.Request {
	often := func(values ...string) string {
		if rng.IntN(4) == 0 {
			return ""
		}
		return values[rng.IntN(len(values))]
	}
	q := rule.Request{
		Tenant: often("acme", "globex", "initech"), Plan: often("gold", "free"), Application: often("web", "app"),
		User: often("u1", "u2"), APIKey: often("k1", "k2"), Service: often("pay", "search"), Endpoint: often("e1", "e2"),
		Cost: rng.Int64N(6),
	}
	if a := often("203.0.113.9", "203.0.113.10", "198.51.100.1", "2001:db8:1:2::", "2001:db9::"); a != "" {
		q.Address = netip.MustParseAddr(a)
	}
	return q
}

// A dearer is the condition that a request costs more.
type dearer int64

func (d dearer) Text() string { return fmt.Sprintf("cost > %d", int64(d)) }

func (d dearer) Holds(q *rule.Request) bool { return q.Cost > int64(d) }

// An unasked is a condition that nobody may ask.
type unasked struct{ t *testing.T }

func (unasked) Text() string { return "true" }

func (u unasked) Holds(*rule.Request) bool {
	u.t.Error("a condition was asked that did not matter")
	return true
}

// TestConditionsOfLosers guarantees that a condition costs only the requests
// that it decides about: it is asked last, and not where its rule is beaten.
func TestConditionsOfLosers(t *testing.T) {
	t.Parallel()

	book := decide.NewBook()
	everybody, own, beaten, others := override("e-everybody", ""), override("a-own", "acme"), override("b-beaten", "acme"), override("c-others", "globex")
	later := override("d-later", "acme")
	own.Priority, later.ValidFrom = 1, t0.Add(time.Hour)
	for i, r := range []*rule.Rule{everybody, own, beaten, others, later} {
		if r != own {
			r.Condition = unasked{t}
		}
		book.Apply([]decide.Change{{Kind: decide.RuleKind, ID: r.ID, Version: int64(i + 1), Object: r}})
	}
	q := rule.Request{Tenant: "acme"}
	if diff := cmp.Diff([]string{"a-own"}, ids(book.Current().Winners(&q, t0))); diff != "" {
		t.Errorf("winners (-want +got):\n%s", diff)
	}
}

// TestConditionSeesTheRequest guarantees what a condition is asked about: the
// request as the catalogue completes it, with what only conditions look at.
func TestConditionSeesTheRequest(t *testing.T) {
	t.Parallel()

	g := newGate(t)
	g.tenant(&decide.Tenant{ID: "acme", Plan: "gold"})
	g.put(decide.EndpointKind, "pay", &decide.EndpointDef{ID: "pay", Service: "payments", Path: "/v1/pay/{id}", Cost: 5})
	var seen rule.Request
	r := rate("burst", rule.Tenant, 10)
	r.Condition = peeking{&seen}
	g.rule(r)
	address := netip.MustParseAddr("203.0.113.9")
	labels := map[string]string{"region": "eu"}
	g.ask(decide.Query{
		Tenant: "acme", Application: "web", User: "u1", APIKey: "k1", Address: address,
		Service: "payments", Method: "POST", Path: "/v1/pay/17", Labels: labels,
	})
	want := rule.Request{
		Tenant: "acme", Plan: "gold", Application: "web", User: "u1", APIKey: "k1", Address: address, Service: "payments", Endpoint: "pay",
		Method: "POST", Path: "/v1/pay/17", Labels: labels, Cost: 5,
	}
	if diff := cmp.Diff(want, seen, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// A peeking condition holds and keeps what it was asked about.
type peeking struct{ seen *rule.Request }

func (peeking) Text() string { return "true" }

func (p peeking) Holds(q *rule.Request) bool {
	*p.seen = *q
	return true
}

// TestRequestCostsItsOwnBuckets guarantees that overrides of other tenants cost
// a request nothing, however many there are: what it looks into grows with the
// ways in which rules select, not with the rules.
func TestRequestCostsItsOwnBuckets(t *testing.T) {
	t.Parallel()

	book := decide.NewBook()
	book.Apply(overrides(10_000))
	s := book.Current()
	if got := s.Classes(); got != 2 {
		t.Errorf("a request looks into %d buckets, want 2: its tenant's and everybody's", got)
	}
	q := rule.Request{Tenant: "tenant-4711"}
	if diff := cmp.Diff([]string{"override-4711"}, ids(s.Winners(&q, t0))); diff != "" {
		t.Errorf("winners (-want +got):\n%s", diff)
	}
	q.Tenant = "nobody"
	if diff := cmp.Diff([]string{"default"}, ids(s.Winners(&q, t0))); diff != "" {
		t.Errorf("winners (-want +got):\n%s", diff)
	}
}

// TestMatchAllocatesNothing guarantees that finding a request's rules leaves
// nothing to collect, whatever selects: tenants among ten thousand, networks of
// five lengths, and times. (AllocsPerRun wants to be alone.)
func TestMatchAllocatesNothing(t *testing.T) {
	book := decide.NewBook()
	book.Apply(overrides(10_000))
	book.Apply(temporaryRules())
	s := book.Current()
	q := &rule.Request{Plan: "gold", Application: "web", User: "u1", Service: "payments", Endpoint: "pay", Address: t0Address}
	tenants := [...]string{"tenant-0", "tenant-1", "tenant-1000", "tenant-9999", "nobody"}
	want := [...]string{"override-0", "sale-1", "override-1000", "override-9999", "default"}
	won := make([]*rule.Rule, 0, 16)
	var found [len(tenants)]string
	next := 0
	if n := testing.AllocsPerRun(10_000, func() {
		q.Tenant = tenants[next]
		won = s.AppendWinners(won[:0], q, t0)
		found[next] = won[0].ID
		next = (next + 1) % len(tenants)
	}); n != 0 {
		t.Errorf("a match allocates %v times", n)
	}
	if found != want {
		t.Errorf("found %v, want %v", found, want)
	}
}

// TestCollidingBuckets guarantees that rules whose hashes are equal by chance do
// not pass for one another's, and survive each other's removal.
func TestCollidingBuckets(t *testing.T) {
	t.Parallel()

	user, network := override("user", ""), override("network", "acme")
	user.Match.User = "acme" // the same value under another selector
	network.Match.Networks = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	twin := override("twin", "acme")
	all := []*rule.Rule{override("acme", "acme"), override("globex", "globex"), override("default", ""), user, network, twin}
	want := map[string][]string{
		"acme": {"acme", "twin"}, "globex": {"globex"}, "default": {"default"}, "user": {"user"}, "network": {"network"}, "twin": {"acme", "twin"},
	}
	var chain decide.Chain
	for _, r := range all {
		chain.Add(r)
	}
	for _, gone := range append([]*rule.Rule{nil}, all...) {
		if gone != nil {
			chain.Remove(gone)
		}
		for _, r := range all {
			if gone != nil {
				want[r.ID] = slices.DeleteFunc(want[r.ID], func(id string) bool { return id == gone.ID })
			}
			if got := ids(chain.Find(r)); !slices.Equal(got, want[r.ID]) {
				t.Errorf("without %v: the bucket of %s holds %v, want %v", gone, r.ID, got, want[r.ID])
			}
		}
	}
}

// overrides is a default of 10 a minute and n tenants with a limit of their
// own.
func overrides(n int) []decide.Change {
	changes := make([]decide.Change, 0, n+1)
	changes = append(changes, decide.Change{Kind: decide.RuleKind, ID: "default", Version: 1, Object: override("default", "")})
	for i := range n {
		id := fmt.Sprintf("override-%d", i)
		changes = append(changes, decide.Change{
			Kind: decide.RuleKind, ID: id, Version: int64(i + 2), Object: override(id, fmt.Sprintf("tenant-%d", i)),
		})
	}
	return changes
}

func override(id, tenant string) *rule.Rule {
	return &rule.Rule{
		ID: id, Enabled: true, Mode: rule.Enforce, Kind: rule.Rate, Algorithm: rule.GCRA,
		Subject: rule.Tenant, Meter: "api-calls", Limit: 10, Burst: 10, Window: time.Minute,
		Match: rule.Match{Tenant: tenant}, OnFailure: rule.Open,
	}
}

// anyone is a request without dimensions.
func anyone() *rule.Request { return &rule.Request{} }
