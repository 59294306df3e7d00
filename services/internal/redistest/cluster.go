package redistest

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"penstock.dev/deploy/local/server"
)

// A Cluster is six nodes of Redis: three masters, each with a replica. Its
// methods fail the test rather than return an error.
type Cluster struct {
	URL   string    // names all nodes, as redis.ParseClusterURL takes it
	Nodes []*Server // Nodes[i+3] began as the replica of Nodes[i]

	t testing.TB
}

// StartCluster returns a running cluster, which takes about 2.5 s. A node that
// is silent for a second is taken for dead. Args are passed to every
// redis-server. It ends with the test, or with the test binary.
func StartCluster(t testing.TB, args ...string) *Cluster {
	t.Helper()
	c, err := server.StartRedisCluster(t.Context(), t.TempDir(), server.RedisClusterOptions{
		NodeTimeout: time.Second, Args: args, Run: server.Run{Say: func(s string) { t.Log(s) }},
	})
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	cluster := &Cluster{URL: c.URL(), t: t}
	for _, p := range c.Nodes {
		s := &Server{Addr: p.Addr, URL: p.URL, t: t, process: p}
		t.Cleanup(func() {
			if t.Failed() {
				logTail(t, p)
			}
			s.Kill()
		})
		cluster.Nodes = append(cluster.Nodes, s)
	}
	return cluster
}

// Client returns a new client of the whole cluster, closed at the end of the
// test.
func (c *Cluster) Client() *redis.ClusterClient {
	c.t.Helper()
	o, err := redis.ParseClusterURL(c.URL)
	if err != nil {
		c.t.Fatalf("redistest: %v", err)
	}
	client := redis.NewClusterClient(o)
	c.t.Cleanup(func() { _ = client.Close() })
	return client
}

// Master returns the node that serves a key, once one does.
func (c *Cluster) Master(key string) *Server {
	c.t.Helper()
	var found *Server
	c.until("a master for "+key, func(ctx context.Context) bool {
		for _, s := range c.Nodes {
			if serves(ctx, s, key) {
				found = s
				return true
			}
		}
		return false
	})
	return found
}

// serves reports whether s answers for key itself.
func serves(ctx context.Context, s *Server, key string) bool {
	if !s.process.Running() {
		return false
	}
	client := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1, ContextTimeoutEnabled: true, DialTimeout: time.Second, ReadTimeout: time.Second})
	defer func() { _ = client.Close() }()
	err := client.Exists(ctx, key).Err() // a replica answers MOVED
	return err == nil
}

// A Migration is a slot on its way from one node to another.
type Migration struct {
	From, To *Server

	c    *Cluster
	slot int64
}

// Migrate begins to move the slot of a key to another master: from now on, what
// is not on the old node is asked of the new one.
func (c *Cluster) Migrate(key string, to *Server) *Migration {
	c.t.Helper()
	m := &Migration{From: c.Master(key), To: to, c: c}
	ctx := c.t.Context()
	slot, err := m.From.Client().ClusterKeySlot(ctx, key).Result()
	c.must(err)
	m.slot = slot
	c.must(m.set(to, "importing", c.id(m.From)))
	c.must(m.set(m.From, "migrating", c.id(to)))
	return m
}

func (m *Migration) set(node *Server, args ...any) error {
	return node.Client().Do(m.c.t.Context(), append([]any{"cluster", "setslot", m.slot}, args...)...).Err()
}

// Keys moves the keys that are there.
func (m *Migration) Keys() {
	m.c.t.Helper()
	ctx, from := m.c.t.Context(), m.From.Client()
	host, port, err := net.SplitHostPort(m.To.Addr)
	m.c.must(err)
	keys, err := from.ClusterGetKeysInSlot(ctx, int(m.slot), 10_000).Result()
	m.c.must(err)
	if len(keys) == 0 {
		return
	}
	args := []any{"migrate", host, port, "", 0, 5000, "keys"}
	for _, k := range keys {
		args = append(args, k)
	}
	m.c.must(from.Do(ctx, args...).Err())
}

// End moves what is left and tells the masters who serves the slot now. It waits
// until all nodes know: a slot that is moved again before that may end up with
// none.
func (m *Migration) End() {
	m.c.t.Helper()
	m.Keys()
	id := m.c.id(m.To)
	m.c.must(m.set(m.To, "node", id))
	m.c.must(m.set(m.From, "node", id))
	var clients []*redis.Client
	for _, s := range m.c.Nodes {
		if !s.process.Running() {
			continue
		}
		clients = append(clients, s.Client())
		if s != m.To && s != m.From {
			_ = m.set(s, "node", id) // replicas refuse it: their masters tell them
		}
	}
	m.c.until("agreement on who serves the slot", func(ctx context.Context) bool {
		return !slices.ContainsFunc(clients, func(node *redis.Client) bool { return !m.known(ctx, node) })
	})
}

// known reports whether a node knows that the slot has moved.
func (m *Migration) known(ctx context.Context, node *redis.Client) bool {
	ranges, err := node.ClusterSlots(ctx).Result() //nolint:staticcheck // what replaces it says no more
	if err != nil {
		return false
	}
	return slices.ContainsFunc(ranges, func(r redis.ClusterSlot) bool {
		return int64(r.Start) <= m.slot && m.slot <= int64(r.End) && len(r.Nodes) > 0 && r.Nodes[0].Addr == m.To.Addr
	})
}

func (c *Cluster) id(s *Server) string {
	c.t.Helper()
	id, err := s.Client().ClusterMyID(c.t.Context()).Result()
	c.must(err)
	return id
}

func (c *Cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatalf("redistest: %v", err)
	}
}

// until polls for at most half a minute.
func (c *Cluster) until(what string, ok func(context.Context) bool) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok(ctx) {
		select {
		case <-ctx.Done():
			c.must(errors.Join(errors.New("no "+what), ctx.Err()))
		case <-tick.C:
		}
	}
}
