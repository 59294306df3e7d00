package kafka_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain guarantees that nothing this package starts outlives its Close, nor
// a ReadLog or Consume its return. A test binary that a test started is a
// member of its group instead.
func TestMain(m *testing.M) {
	if addr := os.Getenv(victimBroker); addr != "" {
		os.Exit(victim(addr))
	}
	if addr := os.Getenv(victimWriter); addr != "" {
		os.Exit(dyingWriter(addr))
	}
	goleak.VerifyTestMain(m)
}
