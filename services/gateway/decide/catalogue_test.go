package decide_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"penstock.dev/services/gateway/decide"
)

func bookOf(changes ...decide.Change) *decide.Book {
	book := decide.NewBook()
	for i := range changes {
		changes[i].Version = int64(i + 1)
	}
	book.Apply(changes)
	return book
}

func service(id, prefix string, hosts ...string) decide.Change {
	return decide.Change{Kind: decide.ServiceKind, ID: id, Object: &decide.ServiceDef{ID: id, PathPrefix: prefix, Hosts: hosts}}
}

// TestRoute guarantees which service a request belongs to, and what its path is
// behind the prefix.
func TestRoute(t *testing.T) {
	t.Parallel()

	s := bookOf(
		service("payments", "/payments"),
		service("refunds", "/payments/refunds/"),
		service("search", "/", "search.example.com", "Find.Example.com"),
		service("search-admin", "/admin", "search.example.com"),
		service("b-twin", "/twin"), service("a-twin", "/twin"),
	).Current()
	tests := []struct {
		host, path, id, rest string
	}{
		{"api.example.com", "/payments/v1/pay", "payments", "/v1/pay"},
		{"api.example.com", "/payments", "payments", "/"},
		{"api.example.com", "/payments/", "payments", "/"},
		{"api.example.com", "/paymentsx/v1", "", ""},
		{"api.example.com", "/payments/refunds/7", "refunds", "/7"},
		{"api.example.com", "/payments/refundsx", "payments", "/refundsx"},
		{"api.example.com", "/Payments", "", ""},
		{"api.example.com", "/", "", ""},
		{"search.example.com", "/payments/v1/pay", "search", "/payments/v1/pay"},
		{"find.example.com", "/", "search", "/"},
		{"search.example.com", "/admin/users", "search-admin", "/users"},
		{"find.example.com", "/admin/users", "search", "/admin/users"},
		{"", "/payments/v1", "payments", "/v1"},
		{"api.example.com", "/twin/x", "a-twin", "/x"},
	}
	for _, tt := range tests {
		svc, rest, ok := s.Route(tt.host, tt.path)
		id := ""
		if ok {
			id = svc.ID
		}
		if id != tt.id || rest != tt.rest {
			t.Errorf("Route(%q, %q) = %q %q, want %q %q", tt.host, tt.path, id, rest, tt.id, tt.rest)
		}
	}
}

// TestRouteOfEverything guarantees that a service without host and prefix gets
// what no other does.
func TestRouteOfEverything(t *testing.T) {
	t.Parallel()

	s := bookOf(service("payments", "/payments"), service("rest", "")).Current()
	for path, want := range map[string]string{"/payments/x": "payments", "/other": "rest", "/": "rest"} {
		if svc, _, ok := s.Route("any.example.com", path); !ok || svc.ID != want {
			t.Errorf("Route(%q) = %v, want %s", path, svc, want)
		}
	}
}

// TestRouteFollowsChanges guarantees that a service is found by what it is now
// and not by what it was.
func TestRouteFollowsChanges(t *testing.T) {
	t.Parallel()

	book := bookOf(service("a", "/one/two"), service("b", "/one"))
	move := service("a", "/three", "host.example.com")
	move.Version = 10
	book.Apply([]decide.Change{move})
	s := book.Current()
	if svc, _, _ := s.Route("", "/one/two"); svc == nil || svc.ID != "b" {
		t.Errorf("/one/two leads to %v, want b", svc)
	}
	if svc, _, _ := s.Route("host.example.com", "/three"); svc == nil || svc.ID != "a" {
		t.Errorf("/three leads to %v, want a", svc)
	}
	book.Apply([]decide.Change{{Kind: decide.ServiceKind, ID: "a", Version: 11}, {Kind: decide.ServiceKind, ID: "b", Version: 12}})
	if svc, _, ok := book.Current().Route("host.example.com", "/three"); ok {
		t.Errorf("a deleted service is still found: %v", svc)
	}
}

// TestRouteOfALongPath guarantees that a path cannot be made so long that
// finding its service is work: only as many prefixes are tried as services
// have segments. (AllocsPerRun wants to be alone.)
func TestRouteOfALongPath(t *testing.T) {
	s := bookOf(service("payments", "/payments")).Current()
	path := strings.Repeat("/a", 1<<20)
	if allocs := testing.AllocsPerRun(10, func() { s.Route("", path) }); allocs > 1 {
		t.Errorf("%v allocations, want at most 1", allocs)
	}
}

// TestEndpoint guarantees which endpoint a method and a path belong to.
func TestEndpoint(t *testing.T) {
	t.Parallel()

	endpoint := func(id, method, path string) decide.Change {
		return decide.Change{Kind: decide.EndpointKind, ID: id, Object: &decide.EndpointDef{ID: id, Service: "s", Method: method, Path: path}}
	}
	s := bookOf(
		endpoint("pay", "POST", "/v1/pay"),
		endpoint("any-pay", "", "/v1/pay"),
		endpoint("one", "GET", "/v1/{id}"),
		endpoint("one-part", "", "/v1/{id}/parts/{part}"),
		endpoint("left", "", "/a/{x}"),
		endpoint("right", "", "/{x}/b"),
		endpoint("get-list", "GET", "/list"),
		endpoint("any-under", "", "/list/{id}"),
		endpoint("exact-post", "POST", "/list/special"),
		endpoint("head", "HEAD", "/v2/thing"), endpoint("get", "GET", "/v2/thing"),
		endpoint("root", "GET", "/"),
		decide.Change{Kind: decide.EndpointKind, ID: "other", Object: &decide.EndpointDef{ID: "other", Service: "t", Path: "/v1/pay"}},
	).Current()
	tests := []struct {
		method, path, want string
	}{
		{"POST", "/v1/pay", "pay"},
		{"PUT", "/v1/pay", "any-pay"},
		{"POST", "/v1/pay/", "pay"},
		{"POST", "/v1/pay;a=1", "pay"},
		{"POST", "/V1/pay", ""},
		{"GET", "/v1/17", "one"},
		{"GET", "/v1/17;x=1/", "one"},
		{"HEAD", "/v1/17", "one"},
		{"POST", "/v1/17", ""},
		{"GET", "/v1/;x=1", ""},
		{"GET", "/v1/17/parts/2", "one-part"},
		{"GET", "/v1//parts/2", ""},
		{"GET", "/a/b", "left"},
		{"GET", "/c/b", "right"},
		{"GET", "/list", "get-list"},
		{"DELETE", "/list", ""},
		{"POST", "/list/special", "exact-post"},
		{"GET", "/list/special", "any-under"},
		{"HEAD", "/v2/thing", "head"},
		{"GET", "/v2/thing", "get"},
		{"GET", "/", "root"},
		{"GET", "", "root"},
		{"GET", "/nothing/here/at/all", ""},
	}
	for _, tt := range tests {
		got := ""
		if e := s.Endpoint("s", tt.method, tt.path); e != nil {
			got = e.ID
		}
		if got != tt.want {
			t.Errorf("Endpoint(%s %s) = %q, want %q", tt.method, tt.path, got, tt.want)
		}
	}
	if e := s.Endpoint("unknown", "GET", "/v1/pay"); e != nil {
		t.Errorf("an unknown service has endpoint %v", e)
	}
}

// TestEndpointFollowsChanges guarantees that an endpoint that moved to another
// service, or went, is found there only, or nowhere.
func TestEndpointFollowsChanges(t *testing.T) {
	t.Parallel()

	in := func(service string, version int64) []decide.Change {
		return []decide.Change{{
			Kind: decide.EndpointKind, ID: "e", Version: version,
			Object: &decide.EndpointDef{ID: "e", Service: service, Path: "/x"},
		}}
	}
	book := decide.NewBook()
	book.Apply(in("a", 1))
	book.Apply(in("b", 2))
	if s := book.Current(); s.Endpoint("a", "GET", "/x") != nil || s.Endpoint("b", "GET", "/x") == nil {
		t.Error("the endpoint is not where it moved to")
	}
	book.Apply([]decide.Change{{Kind: decide.EndpointKind, ID: "e", Version: 3}})
	if s := book.Current(); s.Endpoint("b", "GET", "/x") != nil || s.EndpointByID("e") != nil {
		t.Error("a deleted endpoint is still found")
	}
}

// TestKey guarantees that a key is found by the digest of its secret as it is
// now, that a revoked one is not, and that a key replaced by another secret is
// not found by the old one.
func TestKey(t *testing.T) {
	t.Parallel()

	key := func(id, secret string, version int64) decide.Change {
		return decide.Change{Kind: decide.KeyKind, ID: id, Version: version, Object: &decide.Key{
			ID: id, Tenant: "acme", Application: "web", User: "u1", Digest: sha256.Sum256([]byte(secret)),
		}}
	}
	book := decide.NewBook()
	book.Apply([]decide.Change{key("k1", "old", 1), key("k2", "other", 2)})
	book.Apply([]decide.Change{key("k1", "new", 3), {Kind: decide.KeyKind, ID: "k2", Version: 4}})
	s := book.Current()
	for secret, want := range map[string]bool{"old": false, "new": true, "other": false, "": false} {
		k, ok := s.Key(sha256.Sum256([]byte(secret)))
		if ok != want {
			t.Errorf("key with secret %q found: %v, want %v", secret, ok, want)
		}
		if ok && (k.ID != "k1" || k.Tenant != "acme" || k.Application != "web" || k.User != "u1") {
			t.Errorf("key %+v", k)
		}
	}
}

// TestC4LateVersions guarantees that a version that arrives late changes
// nothing: neither a newer object nor a deletion, nor a version that was set
// aside.
func TestC4LateVersions(t *testing.T) {
	t.Parallel()

	at := func(version int64, limit int64) decide.Change {
		r := rate("r", 0, limit)
		return decide.Change{Kind: decide.RuleKind, ID: "r", Version: version, Object: r}
	}
	gone := func(version int64) decide.Change {
		return decide.Change{Kind: decide.RuleKind, ID: "r", Version: version}
	}
	keep := func(version int64) decide.Change {
		return decide.Change{Kind: decide.RuleKind, ID: "r", Version: version, Keep: true}
	}
	under := func(version, limit int64) decide.Change {
		c := at(version, limit)
		c.Under = true
		return c
	}
	tests := []struct {
		name    string
		changes []decide.Change
		limit   int64 // in force; 0: none is
	}{
		{"v7, then a late v6: v7 stays", []decide.Change{at(7, 70), at(6, 60)}, 70},
		{"v7 again: v7 stays", []decide.Change{at(7, 70), at(7, 71)}, 70},
		{"tombstone v8, then a late v7: stays deleted", []decide.Change{at(6, 60), gone(8), at(7, 70)}, 0},
		{"tombstone v8 of what never was, then v7: stays deleted", []decide.Change{gone(8), at(7, 70)}, 0},
		{"a late tombstone: v9 stays", []decide.Change{at(9, 90), gone(8)}, 90},
		{"created again after a tombstone", []decide.Change{gone(8), at(9, 90)}, 90},
		{"v8 set aside: v7 stays in force", []decide.Change{at(7, 70), keep(8)}, 70},
		{"v8 set aside, then a late v6: v5 stays in force", []decide.Change{at(5, 50), keep(8), at(6, 60)}, 50},
		{"v8 set aside, then v9: v9 is in force", []decide.Change{at(7, 70), keep(8), at(9, 90)}, 90},
		{"v8 set aside of what never was, then a late v7: nothing", []decide.Change{keep(8), at(7, 70)}, 0},
		{"a tombstone without a version deletes", []decide.Change{at(7, 70), gone(0)}, 0},
		{"and a late v7 after it: stays deleted", []decide.Change{at(7, 70), gone(0), at(7, 70)}, 0},
		{"created again after it", []decide.Change{at(7, 70), gone(0), at(9, 90)}, 90},
		{"bytes without a version: v7 stays in force", []decide.Change{at(7, 70), keep(0), at(7, 71)}, 70},
		{"and v8 takes over", []decide.Change{at(7, 70), keep(0), at(8, 80)}, 80},
		{"a last good one under v8 that was set aside", []decide.Change{keep(8), under(5, 50)}, 50},
		{"the same when v9 was set aside too", []decide.Change{keep(8), keep(9), under(5, 50)}, 50},
		{"and v9 takes over", []decide.Change{keep(8), under(5, 50), at(9, 90)}, 90},
		{"but not v8", []decide.Change{keep(8), under(5, 50), at(8, 80)}, 50},
		{"nothing goes under a deletion", []decide.Change{gone(7), keep(8), under(5, 50)}, 0},
		{"nor under what is in force", []decide.Change{at(7, 70), keep(8), under(5, 50)}, 70},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			for _, batches := range []string{"one by one", "in one batch"} {
				book := decide.NewBook()
				if batches == "in one batch" {
					book.Apply(tt.changes)
				} else {
					for i := range tt.changes {
						book.Apply(tt.changes[i : i+1])
					}
				}
				won := book.Current().Winners(anyone(), t0)
				got := int64(0)
				if len(won) > 0 {
					got = won[0].Limit
				}
				if len(won) > 1 || got != tt.limit {
					t.Errorf("%s: %d rules, limit %d, want %d", batches, len(won), got, tt.limit)
				}
			}
		})
	}
}

// TestC4TombstonesAreBounded guarantees that objects that come and go for ever
// do not fill the memory, and that what is in force is never forgotten.
func TestC4TombstonesAreBounded(t *testing.T) {
	t.Parallel()

	book := decide.NewBook()
	version := int64(0)
	next := func() int64 { version++; return version }
	book.Apply([]decide.Change{{Kind: decide.RuleKind, ID: "stays", Version: next(), Object: rate("stays", 0, 10)}})
	for range 2 {
		var changes []decide.Change
		for range decide.MaxGraves * 2 / 3 {
			id := fmt.Sprintf("r%d", version)
			changes = append(changes,
				decide.Change{Kind: decide.RuleKind, ID: id, Version: next(), Object: rate(id, 0, 10)},
				decide.Change{Kind: decide.RuleKind, ID: id, Version: next()})
		}
		book.Apply(changes)
	}
	if got, most := book.Objects(), decide.MaxGraves+1; got > most {
		t.Errorf("%d objects are remembered, want at most %d", got, most)
	}
	if got := ids(book.Current().Winners(anyone(), t0)); len(got) != 1 || got[0] != "stays" {
		t.Errorf("in force: %v, want the rule that stays", got)
	}
}

// TestReadersSeeOneRevision guarantees that a snapshot in hand does not change
// while the book does, and that a batch is seen as a whole.
func TestReadersSeeOneRevision(t *testing.T) {
	t.Parallel()

	book := decide.NewBook()
	pair := func(version, limit int64) []decide.Change {
		minute, hour := rate("a", 0, limit), rate("b", 0, limit)
		hour.Meter = "tokens"
		return []decide.Change{
			{Kind: decide.RuleKind, ID: "a", Version: version, Object: minute},
			{Kind: decide.RuleKind, ID: "b", Version: version, Object: hour},
		}
	}
	book.Apply(pair(1, 1))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for v := int64(2); v < 2000; v++ {
			book.Apply(pair(v, v))
		}
	}()
	for {
		s := book.Current()
		for range 2 {
			won := s.Winners(anyone(), t0)
			if len(won) != 2 || won[0].Limit != won[1].Limit || won[0].Limit != s.Revision() {
				t.Fatalf("revision %d: %d rules with limits %v", s.Revision(), len(won), won)
			}
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

// TestReplace guarantees that a book that takes over another's content holds
// nothing of its own any more, and goes on from there.
func TestReplace(t *testing.T) {
	t.Parallel()

	book := bookOf(service("old", "/old"), service("both", "/both"))
	staged := bookOf(service("both", "/both"), service("new", "/new"))
	before := book.Current()
	book.Replace(staged)
	s := book.Current()
	if s.Service("old") != nil || s.Service("both") == nil || s.Service("new") == nil {
		t.Error("the book does not hold what it took over")
	}
	if before.Service("old") == nil {
		t.Error("a snapshot in hand changed")
	}
	if staged.Current().Count(decide.ServiceKind) != 0 {
		t.Error("the other book was not emptied")
	}
	late := service("new", "/late")
	late.Version = 1
	book.Apply([]decide.Change{late})
	if _, _, ok := book.Current().Route("", "/late"); ok {
		t.Error("a version older than the one taken over was applied")
	}
}
