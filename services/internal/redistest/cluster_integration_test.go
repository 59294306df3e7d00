//go:build integration

package redistest_test

import (
	"strconv"
	"strings"
	"testing"

	"penstock.dev/services/internal/redistest"
)

// TestIntegrationClusterMovesASlotAndLosesAMaster guarantees that a test can
// move a slot with its keys, and take a master away.
func TestIntegrationClusterMovesASlotAndLosesAMaster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	client := c.Client()
	for i := range 20 {
		if err := client.Set(t.Context(), "{k}:"+strconv.Itoa(i), i, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	from := c.Master("{k}")
	to := c.Nodes[0]
	if to == from {
		to = c.Nodes[1]
	}
	m := c.Migrate("{k}", to)
	m.Keys()
	if err := from.Client().Get(t.Context(), "{k}:7").Err(); err == nil || !strings.HasPrefix(err.Error(), "ASK ") {
		t.Errorf("under way, the old node answers %v, want ASK", err)
	}
	m.End()
	if c.Master("{k}") != to {
		t.Error("the slot is not where it was moved")
	}
	if got, err := client.Get(t.Context(), "{k}:7").Result(); err != nil || got != "7" {
		t.Errorf("GET = %q, %v; want 7", got, err)
	}
	to.Kill()
	if now := c.Master("{k}"); now == to || now == from {
		t.Errorf("%s serves the slot, want the replica of the dead one", now.Addr)
	}
}
