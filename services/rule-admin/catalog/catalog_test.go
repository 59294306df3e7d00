package catalog_test

import (
	"testing"
	"time"

	"penstock.dev/services/internal/condition"
	"penstock.dev/services/rule-admin/catalog/catalogtest"
)

var t0 = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

// TestMemory guarantees that the store in memory, which other tests rely on,
// is a store like the real one.
func TestMemory(t *testing.T) {
	t.Parallel()
	catalogtest.Conform(t, condition.Compile, func(*testing.T) catalogtest.Store { return catalogtest.NewMemory(t0) })
}
