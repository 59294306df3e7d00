package bench

import (
	"fmt"
	"slices"
)

// The contenders.
const (
	ours      = "penstock"            // the gateway, on its own HTTP/2 layer
	oursGRPC  = "penstock-grpc-go"    // the same, on grpc-go
	oursBatch = "penstock-batch"      // POST /v1/decisions:batch of 100, over fewer connections
	oursCalm  = "penstock-with-redis" // of the scenario that stops Redis: as much load with Redis
	envoy     = "envoy"               // envoyproxy/ratelimit
	naive     = "naive"               // one EVALSHA a request through go-redis
	empty     = "empty"               // a grpc-go server that answers at once
	raw       = "redis-benchmark"     // EVALSHA of the naive design, 64 connections
	pipelined = "redis-benchmark-16"  // the same, 16 a write
)

// A Scenario is one kind of load.
type Scenario struct {
	Name     string
	Service  string // of our rules, domain of the others'
	Rules    int    // that apply to each request
	Keys     int    // subjects
	HTTP     bool   // POST /v1/decisions instead of envoy.service.ratelimit.v3
	Conns    int
	InFlight int     // of a closed loop
	Rate     float64 // of an open loop, a second
	Denied   bool    // all but the first of each key
	Frozen   bool    // Redis is stopped while it is measured
	Against  []string
}

// batch is how many decisions one POST /v1/decisions:batch asks for.
const batch = 100

// Scenarios are the kinds of load, in the order in which they run.
func Scenarios() []Scenario {
	const subjects = 10_000
	closed := func(name, service string, rules, inFlight int, against ...string) Scenario {
		return Scenario{Name: name, Service: service, Rules: rules, Keys: subjects, Conns: 8, InFlight: inFlight, Against: against}
	}
	open := func(name string, rate float64) Scenario {
		return Scenario{Name: name, Service: "bench-1", Rules: 1, Keys: subjects, Conns: 8, Rate: rate, Against: []string{envoy, naive}}
	}
	denied := closed("grpc_denied_64", "bench-denied", 1, 64, envoy, naive)
	denied.Denied = true
	overHTTP := closed("http_1rule_64", "bench-1", 1, 64, oursBatch, envoy, naive)
	overHTTP.HTTP, overHTTP.Conns = true, 64
	hot := closed("grpc_hot_64", "bench-hot", 1, 64, naive)
	hot.Keys = 100
	leased := hot
	leased.Name, leased.Service = "grpc_hot_leased_64", "bench-leased"
	frozen := closed("frozen", frozenServices[0], 1, 64, oursCalm)
	frozen.Frozen = true
	return []Scenario{
		closed("grpc_1rule_64", "bench-1", 1, 64, oursGRPC, envoy, naive, empty, raw, pipelined),
		closed("grpc_6rules_64", "bench-6", 6, 64, envoy, naive, raw),
		closed("grpc_1rule_256", "bench-1", 1, 256, envoy, naive),
		denied, overHTTP, open("open_1000", 1000), open("open_5000", 5000), hot, leased, frozen,
	}
}

// frozenServices have a rule each that leaves a decision without Redis to
// another mode: open, local, closed.
var frozenServices = [...]string{"bench-open", "bench-local", "bench-closed"}

// Only is the scenarios of those names.
func Only(names []string) ([]Scenario, error) {
	all := Scenarios()
	if len(names) == 0 {
		return all, nil
	}
	var some []Scenario
	for _, name := range names {
		i := slices.IndexFunc(all, func(s Scenario) bool { return s.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no scenario %q", name)
		}
		some = append(some, all[i])
	}
	return some, nil
}
