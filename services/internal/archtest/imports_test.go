package archtest

import (
	"path"
	"slices"
	"strings"
	"testing"
)

// An edge is one import; inside the repository, paths are relative to root.
type edge struct {
	from, to string
	test     bool // the import is in a _test.go file
}

// A rule refuses some imports.
type rule struct {
	why    string
	refuse func(edge) bool
	proof  edge // an edge the rule must refuse
}

var (
	// domains are the packages that hold what each service knows.
	domains = []string{
		"services/billing/access",
		"services/billing/account",
		"services/billing/catalog",
		"services/billing/invoice",
		"services/billing/metering",
		"services/billing/rating",
		"services/billing/reconcile",
		"services/billing/wallet",
		"services/gateway/ask",
		"services/checkpointer/checkpoint",
		"services/gateway/canon",
		"services/gateway/decide",
		"services/gateway/receipt",
		"services/gateway/tell",
		"services/outbox-relay/outbox",
		"services/rule-admin/catalog",
		"services/rule-admin/ledger",
		"services/threshold-watcher/threshold",
		"services/usage-indexer/usagedoc",
	}
	// words are the small pure packages that every domain may use.
	words = []string{
		"services/internal/endpoint",
		"services/internal/limit",
		"services/internal/money",
		"services/internal/period",
		"services/internal/rule",
	}
)

var rules = []rule{
	{
		why:    "services meet only in topics: another service's code is another team's deploy",
		refuse: func(e edge) bool { a, b := service(e.from), service(e.to); return a != "" && b != "" && a != b },
		proof:  edge{from: "services/outbox-relay/outbox", to: "services/gateway/decide"},
	},
	{
		why: "schemas is read by everyone, so it may depend on no one",
		refuse: func(e edge) bool {
			return within(e.from, "schemas") && within(e.to, "services", "loadtest", "deploy")
		},
		proof: edge{from: "schemas/usagev1", to: "services/internal/rule"},
	},
	{
		why: "proto is read by every client, so it may depend on no one",
		refuse: func(e edge) bool {
			return within(e.from, "proto") && within(e.to, "schemas", "services", "loadtest", "deploy")
		},
		proof: edge{from: "proto/decisionv1", to: "services/gateway/ask"},
	},
	{
		why: "what services share knows no service and no schema: it moves bytes and rows",
		refuse: func(e edge) bool {
			return within(e.from, "services/internal") && (service(e.to) != "" || within(e.to, "schemas", "proto"))
		},
		proof: edge{from: "services/internal/kafka", to: "schemas/rulesv1"},
	},
	{
		why: "what drives the system from outside sees what a user sees",
		refuse: func(e edge) bool {
			return within(e.from, "deploy", "loadtest") && within(e.to, "services")
		},
		proof: edge{from: "deploy/acceptance", to: "services/gateway/decide"},
	},
	{
		why: "the local estate is used by tests and load, and uses neither",
		refuse: func(e edge) bool {
			return within(e.from, "deploy/local") && within(e.to, "deploy/acceptance", "loadtest")
		},
		proof: edge{from: "deploy/local/server", to: "loadtest/openloop"},
	},
	{
		why: "a word is pure and small: the standard library without the world, and other words",
		refuse: func(e edge) bool {
			return slices.Contains(words, e.from) && !e.test && impure(e, words)
		},
		proof: edge{from: "services/internal/limit", to: "services/internal/counters"},
	},
	{
		why: "a domain package is pure: what it needs from the world arrives as a value or a small interface it defines",
		refuse: func(e edge) bool {
			return domain(e.from) != "" && !e.test && impure(e, slices.Concat(words, domains))
		},
		proof: edge{from: "services/gateway/decide", to: "log/slog"},
	},
	{
		why: "adapters of a service never meet: main introduces them",
		refuse: func(e edge) bool {
			s := service(e.from)
			return s != "" && s == service(e.to) && e.from != "services/"+s &&
				!within(e.to, e.from) && domain(e.to) == ""
		},
		proof: edge{from: "services/gateway/httpapi", to: "services/gateway/topics"},
	},
	{
		why: "what only tests need must not be linked into a binary",
		refuse: func(e edge) bool {
			return !e.test && !kit(e.from) && (e.to == "testing" || within(e.to, "testing") || kit(e.to))
		},
		proof: edge{from: "services/internal/postgres", to: "testing"},
	},
	{
		why: "servers are started by tests, by load and by make, never by a service",
		refuse: func(e edge) bool {
			return within(e.to, "deploy") && within(e.from, "services") && !kit(e.from) && !e.test
		},
		proof: edge{from: "services/gateway/topics", to: "deploy/local/server"},
	},
	{
		why: "main introduces parts and knows no library",
		refuse: func(e edge) bool {
			s := service(e.from)
			return s != "" && e.from == "services/"+s && !e.test && thirdParty(e.to)
		},
		proof: edge{from: "services/gateway", to: "github.com/redis/go-redis/v9"},
	},
	only("one place knows the Avro libraries, because the named one is archived (docs/adr/0005); the development registry checks with the other",
		"github.com/twmb/avro", "schemas/internal/codec", "deploy/local"),
	only("one place knows the archived Avro library, and only to encode (docs/adr/0005)",
		"github.com/hamba/avro", "schemas/internal/codec"),
	only("one place knows franz-go, so delivery promises are made once",
		"github.com/twmb/franz-go", "services/internal/kafka", "services/internal/kafkatest",
		"deploy/local", "deploy/acceptance", "deploy/examples", "loadtest"),
	only("Postgres belongs to the services that own tables; the decision path must not wait on it",
		"github.com/jackc", "services/internal/postgres", "services/internal/pgtest",
		"services/rule-admin/postgres", "services/outbox-relay/postgres", "services/billing/postgres", "services/checkpointer/postgres", "deploy/acceptance", "loadtest"),
	only("migrations are run by whoever owns the pool",
		"github.com/pressly/goose", "services/internal/postgres"),
	only("limit state has one owner: its keys and its scripts change together",
		"github.com/redis/go-redis", "services/internal/counters", "services/internal/redistest",
		"deploy/acceptance", "loadtest"),
	only("the index is a view, and one service owns the view (docs/adr/0016)",
		"github.com/elastic", "services/usage-indexer/esindex"),
	only("grpc-go is one engine of the gRPC faces; the face behind it is functions from message to message (docs/adr/0068)",
		"google.golang.org/grpc", "proto/decisionv1", "proto/ratelimitv3", "services/gateway/grpcapi", "deploy/acceptance", "loadtest"),
	only("the messages of proto are the transport's; behind it there are words of our own (docs/adr/0068)",
		"proto", "proto", "services/gateway/grpcapi", "deploy/acceptance", "loadtest"),
	only("the compiler of .proto files is a tool: nothing that runs knows it",
		"github.com/bufbuild", "proto/internal/gen"),
	only("what strangers send as HTTP/2 is decoded in one place (docs/adr/0069)",
		"golang.org/x/net", "services/gateway/grpcapi/h2", "loadtest/wire"),
	only("the conformance suite of HTTP/2 is for the tests of our own layer (docs/adr/0069)",
		"github.com/summerwind/h2spec", "services/gateway/grpcapi/h2"),
	only("conditions are compiled in one place, which bounds what they may do (docs/adr/0054)",
		"cel.dev/cel-go", "services/internal/condition"),
	only("go-kit dresses transports and stops there (docs/adr/0023)",
		"github.com/go-kit", "services/rule-admin/httpapi", "services/billing/httpapi"),
}

// TestImports guarantees that every import in the workspace obeys the house
// rules, that every rule still refuses what it is there to refuse, and that
// the lists name packages that exist.
func TestImports(t *testing.T) {
	t.Parallel()

	for _, r := range rules {
		if !r.refuse(r.proof) {
			t.Errorf("rule %q no longer refuses %s -> %s", r.why, r.proof.from, r.proof.to)
		}
	}
	pkgs := packages(t)
	for _, e := range imports(pkgs) {
		for _, r := range rules {
			if r.refuse(e) {
				t.Errorf("%s must not import %s: %s", e.from, e.to, r.why)
			}
		}
	}
	for _, name := range slices.Concat(domains, words) {
		if !slices.ContainsFunc(pkgs, func(p pkg) bool { return p.rel() == name }) {
			t.Errorf("package %s is listed here and does not exist", name)
		}
	}
}

// imports lists the edges of the workspace's import graph.
func imports(pkgs []pkg) []edge {
	var edges []edge
	for _, p := range pkgs {
		for _, to := range p.Imports {
			edges = append(edges, edge{p.rel(), inside(to), false})
		}
		for _, to := range slices.Concat(p.TestImports, p.XTestImports) {
			edges = append(edges, edge{p.rel(), inside(to), true})
		}
	}
	return edges
}

// only refuses a library to every package but its owners. The tests of a main
// look at their service from outside, with whatever client that takes.
func only(why, lib string, owners ...string) rule {
	return rule{
		why: why,
		refuse: func(e edge) bool {
			outside := e.test && service(e.from) != "" && e.from == "services/"+service(e.from)
			return within(e.to, lib) && !within(e.from, owners...) && !outside
		},
		proof: edge{from: "services/somewhere/else", to: lib + "/x"},
	}
}

// impure reports whether an import reaches out of the allowed packages into a
// library, the outside world or another room of the house.
func impure(e edge, allowed []string) bool {
	if e.to == "net/netip" {
		return false
	}
	return thirdParty(e.to) || within(e.to, "net", "os", "database", "log", "syscall", "schemas", "proto", "deploy", "loadtest") ||
		within(e.to, "services") && !within(e.to, allowed...)
}

// thirdParty reports whether a path is a package of somebody else's module.
func thirdParty(to string) bool {
	first, _, _ := strings.Cut(to, "/")
	return strings.Contains(first, ".")
}

// domain is the domain package that a package is or lies below, or "".
func domain(rel string) string {
	for _, d := range domains {
		if within(rel, d) {
			return d
		}
	}
	return ""
}

// kit reports whether a package of ours is there for tests: its name ends so.
func kit(rel string) bool {
	return within(rel, "services", "schemas", "deploy") && strings.HasSuffix(path.Base(rel), "test") ||
		within(rel, "deploy/acceptance", "loadtest")
}
