// Package system is what load is sent to: an estate of its own, which ends with
// the run, or one that runs already.
package system

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/deploy/local/server"
)

// Options say which system is wanted.
type Options struct {
	// EnvFile names the estate.env of a system that runs. Empty starts one.
	EnvFile string
	// Kafka is estate.Embedded or estate.Real, of a system that is started.
	Kafka string
	// Volatile starts a PostgreSQL that does not flush to disk.
	Volatile bool
	// ElasticsearchURL is a search store for a system that is started, which then
	// starts none.
	ElasticsearchURL string
	// RedisURL is a counter store for a system that is started, which then starts
	// none.
	RedisURL string
	// CommitTimes has PostgreSQL remember when transactions were committed. One
	// that runs must do so already.
	CommitTimes bool
	// Anywhere allows addresses beyond this machine.
	Anywhere bool
	Say      func(string) // progress; nil drops it
}

// A System is a running one. Close ends what Open started.
type System struct {
	*estate.Estate
	Root string // the clone
	Dir  string // for files of this run; removed by Close
	own  bool
}

// Open returns a system that is ready.
func Open(ctx context.Context, o Options) (*System, error) {
	root, dir, err := Scratch()
	if err != nil {
		return nil, err
	}
	s := &System{Root: root, Dir: dir, own: o.EnvFile == ""}
	if s.own {
		err = s.start(ctx, o)
	} else {
		err = s.join(o)
	}
	if err == nil && o.CommitTimes {
		err = s.commitTimes(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	return s, nil
}

// Scratch makes a directory for the files of a run, in .run of the clone. The
// caller removes it.
func Scratch() (root, dir string, err error) {
	if root, err = server.Root(); err != nil {
		return "", "", err
	}
	if err := os.MkdirAll(filepath.Join(root, ".run"), 0o755); err != nil {
		return "", "", err
	}
	dir, err = os.MkdirTemp(filepath.Join(root, ".run"), "loadtest-")
	return root, dir, err
}

func (s *System) start(ctx context.Context, o Options) (err error) {
	s.Estate, err = estate.Up(ctx, estate.Options{
		Root: s.Root, Dir: filepath.Join(s.Dir, "estate"), Kafka: o.Kafka, Volatile: o.Volatile, Say: o.Say,
		ElasticsearchURL: o.ElasticsearchURL, RedisURL: o.RedisURL,
	})
	return err
}

// ErrElsewhere reports a system that is not on this machine.
var ErrElsewhere = errors.New("not on this machine: load goes elsewhere only with -anywhere")

func (s *System) join(o Options) error {
	env, err := ReadEnv(o.EnvFile)
	if err != nil {
		return err
	}
	s.Estate = &estate.Estate{Env: env, Dir: filepath.Dir(o.EnvFile)}
	for _, name := range []string{"GATEWAY_URL", "ADMIN_URL", "DATABASE_URL", "KAFKA_BROKERS"} {
		if env[name] == "" {
			return fmt.Errorf("%s has no %s", o.EnvFile, name)
		}
		if !o.Anywhere && !Local(env[name]) {
			return fmt.Errorf("%s=%s is %w", name, env[name], ErrElsewhere)
		}
	}
	return nil
}

// Local reports whether every address of a list or URL is of the loopback.
func Local(list string) bool {
	for addr := range strings.SplitSeq(list, ",") {
		if u, err := url.Parse(addr); err == nil && u.Host != "" {
			addr = u.Host
		}
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return false
		}
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return false
		}
	}
	return true
}

// Close stops what Open started and removes the files of the run.
func (s *System) Close(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	var err error
	if s.own && s.Estate != nil {
		err = s.Down(ctx)
	}
	return errors.Join(err, os.RemoveAll(s.Dir))
}

// awaitReady waits until every service says that it is ready.
func (s *System) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for _, name := range []string{"RULE_ADMIN_METRICS_URL", "OUTBOX_RELAY_METRICS_URL", "GATEWAY_METRICS_URL"} {
		ready := server.Answers200(s.Env[name] + "/ready")
		for err := ready(ctx); err != nil; err = ready(ctx) {
			select {
			case <-ctx.Done():
				return err
			case <-tick.C:
			}
		}
	}
	return nil
}
