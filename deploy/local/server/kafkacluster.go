package server

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// KafkaClusterOptions configures StartKafkaCluster. Ports are free ones.
type KafkaClusterOptions struct {
	HeapMB     int            // of each node; 0 means 384
	Properties []string       // further server properties of every node, name=value, last
	Secure     *KafkaSecurity // as in KafkaOptions
	// Run is of every node. Logs and pids lie in the nodes' directories.
	Run
}

// clusterNodes is how many nodes a cluster has: it bears the loss of one.
const clusterNodes = 3

// stopNode bounds the graceful stop of a node of a cluster. The last one has no
// quorum left to say goodbye to and would wait for ever.
const stopNode = 6 * time.Second

// A KafkaCluster is three nodes, each of them broker and controller.
type KafkaCluster struct {
	Nodes []*Process // to kill and restart, one by one
}

// StartKafkaCluster starts three nodes of Apache Kafka 4.3.1 on 127.0.0.1 and
// returns when each of them takes part. Topics have three replicas, and a write
// with acks=all is in two of them. A node that was killed is noticed after 2 s.
// All of it takes about 600 MB, and 10 s of two cores to start.
func StartKafkaCluster(ctx context.Context, dir string, o KafkaClusterOptions) (*KafkaCluster, error) {
	specs, err := clusterSpecs(ctx, dir, o)
	if err != nil {
		return nil, fmt.Errorf("kafka cluster: %w", err)
	}
	c := &KafkaCluster{Nodes: make([]*Process, len(specs))}
	err = each(len(specs), func(i int) (err error) {
		c.Nodes[i], err = Start(ctx, specs[i])
		return err
	})
	if err != nil {
		return nil, errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
	}
	return c, nil
}

func clusterSpecs(ctx context.Context, dir string, o KafkaClusterOptions) ([]Spec, error) {
	run := kafkaRun{heapMB: o.HeapMB, properties: o.Properties, secure: o.Secure, replicas: clusterNodes, Run: o.Run}
	if run.heapMB == 0 {
		run.heapMB = 384
	}
	if run.Within == 0 {
		run.Within = 2 * defaultReady // they start together
	}
	run.LogPath, run.PIDPath = "", ""
	if err := run.prepare(ctx); err != nil {
		return nil, err
	}
	nodes, voters := make([]kafkaNode, clusterNodes), make([]string, clusterNodes)
	for i := range nodes {
		name := fmt.Sprintf("kafka-%d", i+1)
		nodes[i] = kafkaNode{id: i + 1, name: name, dir: filepath.Join(dir, name)}
		if err := nodes[i].locate(ctx, run); err != nil {
			return nil, err
		}
		voters[i] = nodes[i].voter()
	}
	run.voters = strings.Join(voters, ",")
	specs := make([]Spec, clusterNodes)
	return specs, each(clusterNodes, func(i int) (err error) {
		specs[i], err = run.spec(ctx, nodes[i])
		specs[i].StopWithin = stopNode
		return err
	})
}

// each calls do for 0 to n-1 at once and joins the errors.
func each(n int, do func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = do(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Brokers lists the addresses of the nodes, separated by commas.
func (c *KafkaCluster) Brokers() string {
	return c.list(func(p *Process) string { return p.Addr })
}

// SecureBrokers lists the addresses of the listeners that Secure asked for.
func (c *KafkaCluster) SecureBrokers() string {
	return c.list(func(p *Process) string { return p.SecureAddr })
}

func (c *KafkaCluster) list(addr func(*Process) string) string {
	addrs := make([]string, len(c.Nodes))
	for i, p := range c.Nodes {
		addrs[i] = addr(p)
	}
	return strings.Join(addrs, ",")
}

// Stop asks all nodes at once to end, and kills after 6 s those that cannot for
// want of a quorum, which is no error.
func (c *KafkaCluster) Stop(ctx context.Context) error {
	return each(len(c.Nodes), func(i int) error {
		if c.Nodes[i] == nil {
			return nil
		}
		if err := c.Nodes[i].Stop(ctx); !errors.Is(err, ErrKilled) {
			return err
		}
		return ctx.Err()
	})
}
