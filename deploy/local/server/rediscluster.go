package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// RedisClusterOptions configures StartRedisCluster. Ports are free ones.
type RedisClusterOptions struct {
	// NodeTimeout is how long a node must be silent to be taken for dead; then
	// a replica is promoted. Zero means 2 s.
	NodeTimeout time.Duration
	// AppendOnly keeps the data of a node over its restart, as in RedisOptions.
	AppendOnly bool
	Args       []string // further arguments of every redis-server, last
	// Run is of every node. Logs and pids lie in the nodes' directories.
	Run
}

// Shape of a cluster: each master has a replica, and two masters can outvote
// the third.
const (
	redisMasters = 3
	redisSlots   = 16384
)

// A RedisCluster is three masters and a replica of each, as they were started:
// who is master changes when nodes are killed.
type RedisCluster struct {
	Nodes []*Process // to kill and restart, one by one; Nodes[i+3] began as the replica of Nodes[i]
}

// StartRedisCluster starts six nodes of Redis on 127.0.0.1 and returns when all
// slots are served and every replica follows its master. Slots that lost their
// node do not keep the others from being served. It takes 2 s and 60 MB.
func StartRedisCluster(ctx context.Context, dir string, o RedisClusterOptions) (*RedisCluster, error) {
	c := &RedisCluster{Nodes: make([]*Process, 2*redisMasters)}
	err := each(len(c.Nodes), func(i int) (err error) {
		c.Nodes[i], err = startRedisNode(ctx, filepath.Join(dir, fmt.Sprintf("redis-%d", i+1)), o)
		return err
	})
	if err == nil {
		within := o.Within
		if within == 0 {
			within = defaultReady
		}
		forming, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		err = c.form(forming)
	}
	if err != nil {
		return nil, fmt.Errorf("redis cluster: %w", errors.Join(err, c.Stop(context.WithoutCancel(ctx))))
	}
	return c, nil
}

func startRedisNode(ctx context.Context, dir string, o RedisClusterOptions) (*Process, error) {
	bus, err := FreePort(ctx)
	if err != nil {
		return nil, err
	}
	timeout := o.NodeTimeout
	if timeout == 0 {
		timeout = 2 * time.Second
	}
	run := o.Run
	run.LogPath, run.PIDPath = "", ""
	args := []string{
		"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus),
		"--cluster-node-timeout", strconv.FormatInt(timeout.Milliseconds(), 10),
		"--cluster-require-full-coverage", "no", "--cluster-allow-replica-migration", "no",
		"--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0",
	}
	return StartRedis(ctx, dir, RedisOptions{AppendOnly: o.AppendOnly, Args: append(args, o.Args...), Run: run})
}

// form makes one cluster of the nodes.
func (c *RedisCluster) form(ctx context.Context) error {
	for i, p := range c.Nodes {
		if i < redisMasters {
			first, last := i*redisSlots/redisMasters, (i+1)*redisSlots/redisMasters-1
			if _, err := askRedis(ctx, p.Addr, fmt.Sprintf("CLUSTER ADDSLOTSRANGE %d %d", first, last)); err != nil {
				return err
			}
		}
		if _, err := askRedis(ctx, p.Addr, fmt.Sprintf("CLUSTER SET-CONFIG-EPOCH %d", i+1)); err != nil {
			return err
		}
	}
	if err := c.meet(ctx); err != nil {
		return err
	}
	if err := c.await(ctx, "CLUSTER INFO", "cluster_state:ok", "cluster_known_nodes:"+strconv.Itoa(len(c.Nodes))); err != nil {
		return err
	}
	return c.replicate(ctx)
}

// meet introduces every node to every other: gossip alone takes seconds.
func (c *RedisCluster) meet(ctx context.Context) error {
	for i, p := range c.Nodes {
		host, port, err := net.SplitHostPort(p.Addr)
		if err != nil {
			return err
		}
		bus := p.spec.Args[slices.Index(p.spec.Args, "--cluster-port")+1]
		for _, other := range c.Nodes[i+1:] {
			if _, err := askRedis(ctx, other.Addr, "CLUSTER MEET "+host+" "+port+" "+bus); err != nil {
				return err
			}
		}
	}
	return nil
}

// replicate gives every master its replica, and waits until all nodes know it.
func (c *RedisCluster) replicate(ctx context.Context) error {
	replicas := c.Nodes[redisMasters:]
	roles := make([]string, len(replicas)) // as CLUSTER NODES shows them
	for i, p := range replicas {
		id, err := askRedis(ctx, c.Nodes[i].Addr, "CLUSTER MYID")
		if err != nil {
			return err
		}
		roles[i] = "slave " + id
		follow := func(ctx context.Context) error { // refused until the node knows its master
			_, err := askRedis(ctx, p.Addr, "CLUSTER REPLICATE "+id)
			return err
		}
		if err := until(ctx, follow); err != nil {
			return err
		}
	}
	if err := (&RedisCluster{Nodes: replicas}).await(ctx, "INFO replication", "master_link_status:up"); err != nil {
		return err
	}
	return c.await(ctx, "CLUSTER NODES", roles...)
}

// await polls every node until its answer to the command has all the words.
func (c *RedisCluster) await(ctx context.Context, command string, words ...string) error {
	for _, p := range c.Nodes {
		err := until(ctx, func(ctx context.Context) error {
			answer, err := askRedis(ctx, p.Addr, command)
			for _, w := range words {
				if err == nil && !strings.Contains(answer, w) {
					err = fmt.Errorf("%s: %s has no %q: %q", p.Addr, command, w, answer)
				}
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// until polls do until it returns nil, or until ctx ends.
func until(ctx context.Context, do func(context.Context) error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := do(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// askRedis sends one inline command and returns the answer: a line or a bulk
// without its frame, an array as it came.
func askRedis(ctx context.Context, addr, command string) (string, error) {
	conn, err := dial(ctx, addr)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, command+"\r\nQUIT\r\n"); err != nil {
		return "", err
	}
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("%s: %s: %w", addr, command, err)
	}
	rest, err := io.ReadAll(r)
	if err != nil {
		return "", fmt.Errorf("%s: %s: %w", addr, command, err)
	}
	body := strings.TrimSuffix(string(rest), "+OK\r\n")
	switch line[0] {
	case '-':
		return "", fmt.Errorf("%s: %s: %s", addr, command, strings.TrimSpace(line))
	case '+', ':':
		return strings.TrimSpace(line[1:]), nil
	case '$':
		return strings.TrimSpace(body), nil
	default:
		return line + body, nil
	}
}

// URL names all nodes, in the form that clients of a cluster take.
func (c *RedisCluster) URL() string {
	addrs := make([]string, len(c.Nodes))
	for i, p := range c.Nodes {
		addrs[i] = p.Addr
	}
	return "redis://" + addrs[0] + "?addr=" + strings.Join(addrs[1:], "&addr=")
}

// Stop ends all nodes at once.
func (c *RedisCluster) Stop(ctx context.Context) error {
	return each(len(c.Nodes), func(i int) error {
		if c.Nodes[i] == nil {
			return nil
		}
		return c.Nodes[i].Stop(ctx)
	})
}
