//go:build integration

package server_test

import (
	"strings"
	"testing"
	"time"

	"penstock.dev/deploy/local/server"
)

// TestIntegrationRedisClusterSurvivesAMaster guarantees that a cluster serves
// all slots, that a replica takes over from a master that was killed and has its
// data, and that the dead node comes back as a replica.
func TestIntegrationRedisClusterSurvivesAMaster(t *testing.T) {
	t.Parallel()
	c, err := server.StartRedisCluster(t.Context(), t.TempDir(), server.RedisClusterOptions{NodeTimeout: time.Second, Run: logged(t)})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range c.Nodes {
		stopLater(t, p)
	}
	if n := strings.Count(c.URL(), "127.0.0.1:"); n != 6 {
		t.Errorf("%s names %d nodes, want 6", c.URL(), n)
	}
	const key = "{3560}:k" // of slot 0, the first master's
	if got := redisAnswers(t, c.Nodes[0], "SET "+key+" v"); got != "+OK\r\n" && got != "" {
		t.Fatalf("SET answered %q", got)
	}
	eventually(t, "the replica has the data", func() bool {
		return redisAnswers(t, c.Nodes[3], "DBSIZE") == ":1\r\n"
	})
	if err := c.Nodes[0].Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the replica is promoted with the data", func() bool {
		return redisAnswers(t, c.Nodes[3], "GET "+key) == "$1\r\nv\r\n"
	})
	if err := c.Nodes[0].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the dead node follows it", func() bool {
		return strings.Contains(redisAnswers(t, c.Nodes[0], "ROLE"), "slave")
	})
}
