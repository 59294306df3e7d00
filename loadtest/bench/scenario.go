package bench

import (
	"fmt"
	"slices"
)

// The contenders.
const (
	ours      = "penstock"         // the gateway, on its own HTTP/2 layer
	oursGRPC  = "penstock-grpc-go" // the same, on grpc-go
	oursBatch = "penstock-batch"   // POST /v1/decisions:batch
	envoy     = "envoy"            // envoyproxy/ratelimit
	naive     = "naive"            // one EVALSHA a request through go-redis
	empty     = "empty"            // a grpc-go server that answers at once
)

// A Scenario is one kind of load.
type Scenario struct {
	Name     string
	Service  string // of our rules, domain of the others'
	Rules    int    // that apply to each request
	HTTP     bool   // POST /v1/decisions instead of envoy.service.ratelimit.v3
	Conns    int
	InFlight int     // of a closed loop
	Rate     float64 // of an open loop, a second
	Denied   bool    // all but the first of each key
	Against  []string
}

// batch is how many decisions one POST /v1/decisions:batch asks for.
const batch = 100

// Scenarios are the kinds of load, in the order in which they run.
func Scenarios() []Scenario {
	grpc := []string{envoy, naive}
	return []Scenario{
		{Name: "grpc_1rule_64", Service: "bench-1", Rules: 1, Conns: 8, InFlight: 64, Against: []string{oursGRPC, envoy, naive, empty}},
		{Name: "grpc_6rules_64", Service: "bench-6", Rules: 6, Conns: 8, InFlight: 64, Against: grpc},
		{Name: "grpc_1rule_256", Service: "bench-1", Rules: 1, Conns: 8, InFlight: 256, Against: grpc},
		{Name: "grpc_denied_64", Service: "bench-denied", Rules: 1, Conns: 8, InFlight: 64, Denied: true, Against: grpc},
		{Name: "http_1rule_64", Service: "bench-1", Rules: 1, HTTP: true, Conns: 64, InFlight: 64, Against: []string{oursBatch, envoy, naive}},
		{Name: "open_1000", Service: "bench-1", Rules: 1, Conns: 8, Rate: 1000, Against: grpc},
		{Name: "open_5000", Service: "bench-1", Rules: 1, Conns: 8, Rate: 5000, Against: grpc},
	}
}

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
