package counters_test

import (
	"strings"
	"testing"

	"penstock.dev/services/internal/counters"
)

// TestSlotOf guarantees the cluster specification's slot of a tag, by its own
// examples and by go-redis's routing.
func TestSlotOf(t *testing.T) {
	t.Parallel()
	for tag, want := range map[string]int{"123456789": 12739, "foo": 12182, "": 0} {
		if got := counters.SlotOf(tag); got != want {
			t.Errorf("%q lies in %d, want %d", tag, got, want)
		}
	}
}

// TestEpochKeys guarantees that every slot has an epoch key of its own, in it.
func TestEpochKeys(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for slot, key := range counters.EpochKeys() {
		tag, ok := strings.CutPrefix(key, "epoch:{")
		tag, closed := strings.CutSuffix(tag, "}")
		if !ok || !closed || counters.SlotOf(tag) != slot || seen[key] {
			t.Fatalf("slot %d has the epoch key %q", slot, key)
		}
		seen[key] = true
	}
}
