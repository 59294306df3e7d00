package estate

import (
	"slices"
	"strings"
	"testing"
)

// TestOptionsAreRefusedTogether guarantees that every fault of the variables is
// named at once, by the variable's name.
func TestOptionsAreRefusedTogether(t *testing.T) {
	t.Parallel()

	err := Options{
		PortBase: 80, Gateways: 3, Kafka: "rabbit", RedisURL: "127.0.0.1:6379",
		DatabaseURL: "mysql://x", KafkaBrokers: "127.0.0.1:9092", ElasticsearchURL: "127.0.0.1:9200", Search: "grep",
	}.Validate()
	if err == nil {
		t.Fatal("Validate = nil")
	}
	for _, want := range []string{"PORT_BASE=80", "GATEWAYS=3", "KAFKA=rabbit", "REDIS_URL", "DATABASE_URL", "SCHEMA_REGISTRY_URL", "ELASTICSEARCH_URL: want", "grep"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not mention %s: %v", want, err)
		}
	}
	for _, o := range []Options{
		{},
		{PortBase: DefaultPortBase, Gateways: 2, Kafka: Real, Samples: true},
		{RedisURL: "redis://h:1/0", DatabaseURL: "postgres://u@h/d", KafkaBrokers: "h:1", SchemaRegistryURL: "http://h:2", ElasticsearchURL: "https://u:p@h:3"},
		{Search: WithOpenSearch},
		{Search: WithoutSearch},
	} {
		if err := o.Validate(); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestPortsOfAnEstate guarantees that an estate keeps to its block of ports, no
// two processes share one, and a given base is obeyed on every start.
func TestPortsOfAnEstate(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	first, err := loadState(t.Context(), dir, variables{PortBase: 20_000})
	if err != nil {
		t.Fatal(err)
	}
	owner := map[int]string{}
	for name, port := range first.Ports {
		if port < 20_000 || port >= 20_000+portBlock {
			t.Errorf("%s has port %d, outside the block", name, port)
		}
		if owner[port] != "" {
			t.Errorf("%s and %s share port %d", name, owner[port], port)
		}
		owner[port] = name
	}
	moved, err := loadState(t.Context(), dir, variables{PortBase: 21_000})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := moved.Ports[Gateway], first.Ports[Gateway]+1000; got != want {
		t.Errorf("with another base the gateway has port %d, want %d", got, want)
	}
	if moved.Tokens[adminToken] != first.Tokens[adminToken] || len(first.Tokens[adminToken]) < 26 {
		t.Errorf("tokens are %q and then %q, want one, of 130 bits", first.Tokens, moved.Tokens)
	}
	if moved.ReceiptKey != first.ReceiptKey || len(first.ReceiptKey) < 26 {
		t.Errorf("the key of receipts is %q and then %q, want one, of 130 bits", first.ReceiptKey, moved.ReceiptKey)
	}
}

// TestFreePortsAreKept guarantees that an estate on free ports comes back on the
// same ones.
func TestFreePortsAreKept(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	first, err := loadState(t.Context(), dir, variables{})
	if err != nil {
		t.Fatal(err)
	}
	second, err := loadState(t.Context(), dir, variables{})
	if err != nil {
		t.Fatal(err)
	}
	for name, port := range first.Ports {
		if second.Ports[name] != port {
			t.Errorf("%s moved from port %d to %d", name, port, second.Ports[name])
		}
	}
}

// TestOtherDataIsRefused guarantees that an estate is not started on a broker or
// a database that contradict what it has.
func TestOtherDataIsRefused(t *testing.T) {
	t.Parallel()

	kept := variables{Kafka: Embedded, PortBase: 18000, Gateways: 1}
	if err := sameData(kept, variables{Kafka: Embedded, PortBase: 19000, Gateways: 2, RedisURL: "redis://h:1"}); err != nil {
		t.Errorf("other ports, gateways and Redis: %v", err)
	}
	for _, other := range []variables{{Kafka: Real}, {Kafka: Embedded, DatabaseURL: "postgres://h/d"}} {
		if err := sameData(kept, other); err == nil || !strings.Contains(err.Error(), "WIPE=1") {
			t.Errorf("%s: err = %v, want what to do", other, err)
		}
	}
}

// TestKnobsOfTheEstateWin guarantees that a service gets what the caller asks for, but for
// what the estate itself sets: of two, a process has the last.
func TestKnobsOfTheEstateWin(t *testing.T) {
	t.Parallel()

	u := &undertaking{Options: Options{Knobs: []string{"PENSTOCK_GRPC_ENGINE=grpc-go", "PENSTOCK_LISTEN=:1"}}}
	got := u.knobs(map[string]string{"LISTEN": ":2", "ADMIN_LISTEN": ":3"})
	want := []string{"PENSTOCK_GRPC_ENGINE=grpc-go", "PENSTOCK_LISTEN=:1", "PENSTOCK_ADMIN_LISTEN=:3", "PENSTOCK_LISTEN=:2"}
	if !slices.Equal(got, want) {
		t.Errorf("knobs %q, want %q", got, want)
	}
}
