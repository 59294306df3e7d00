//go:build integration

package counters_test

import (
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"penstock.dev/services/internal/redistest"
)

// newCluster starts two nodes, the first of which has all slots.
func newCluster(t *testing.T) [2]*redistest.Server {
	t.Helper()
	var nodes [2]*redistest.Server
	for i := range nodes {
		nodes[i] = redistest.Start(t, "--cluster-enabled", "yes", "--cluster-port", freePort(t), "--cluster-require-full-coverage", "no")
	}
	first, second := nodes[0].Client(), nodes[1].Client()
	do := func(args ...any) {
		t.Helper()
		if err := first.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	do("cluster", "addslotsrange", "0", "16383")
	host, port, err := net.SplitHostPort(nodes[1].Addr)
	if err != nil {
		t.Fatal(err)
	}
	bus, err := second.ConfigGet(t.Context(), "cluster-port").Result()
	if err != nil {
		t.Fatal(err)
	}
	do("cluster", "meet", host, port, bus["cluster-port"])
	eventually(t, 20*time.Second, "the nodes know each other", func() bool {
		for _, c := range []string{first.ClusterNodes(t.Context()).Val(), second.ClusterNodes(t.Context()).Val()} {
			if strings.Count(c, "connected") != 2 || strings.Contains(c, "handshake") || strings.Contains(c, "disconnected") {
				return false
			}
		}
		return strings.Contains(second.ClusterNodes(t.Context()).Val(), "0-16383") &&
			strings.Contains(first.ClusterInfo(t.Context()).Val(), "cluster_state:ok") &&
			strings.Contains(second.ClusterInfo(t.Context()).Val(), "cluster_state:ok")
	})
	return nodes
}

// moveSlot gives the key's slot to the second node.
func moveSlot(t *testing.T, nodes [2]*redistest.Server, key string) {
	t.Helper()
	first, second := nodes[0].Client(), nodes[1].Client()
	slot, err := first.ClusterKeySlot(t.Context(), key).Result()
	if err != nil {
		t.Fatal(err)
	}
	id, err := second.Do(t.Context(), "cluster", "myid").Text()
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range []*redis.Client{second, first} {
		if err := node.Do(t.Context(), "cluster", "setslot", slot, "node", id).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(port)
}
