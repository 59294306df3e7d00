package kafka_test

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain guarantees that nothing this package starts outlives its Close, nor
// a ReadLog its return.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
