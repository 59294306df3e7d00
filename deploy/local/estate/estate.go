// Package estate runs the whole of Penstock on one machine: the servers, the
// services of this clone, a sample upstream and a sample catalogue. It is what
// `make up` and `make demo` start, and what the acceptance and load tests test.
//
// Everything it writes lies below one directory: data/<name> for each process,
// <name>.log, <name>.pid, estate.json (what was asked for, ports, tokens),
// estate.env (for people and scripts) and keys.env (the sample API keys).
package estate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"penstock.dev/deploy/local/server"
)

// The processes, in the order in which they are started. They are stopped in
// the reverse order.
const (
	Redis         = "redis"
	Postgres      = "postgres"
	Kafka         = "kafka"    // the development broker with its registry, or Apache Kafka
	Registry      = "registry" // only beside Apache Kafka
	Elasticsearch = "elasticsearch"
	OpenSearch    = "opensearch" // instead of Elasticsearch
	Sample        = "sample"
	RuleAdmin     = "rule-admin"
	OutboxRelay   = "outbox-relay"
	UsageIndexer  = "usage-indexer"
	Watcher       = "threshold-watcher"
	Checkpointer  = "checkpointer"
	Billing       = "billing"
	Gateway       = "gateway"
	Gateway2      = "gateway-2"
)

func order() []string {
	return []string{
		Redis, Postgres, Kafka, Registry, Elasticsearch, OpenSearch,
		Sample, RuleAdmin, OutboxRelay, UsageIndexer, Watcher, Checkpointer, Billing, Gateway, Gateway2,
	}
}

// An Estate is a running system. It is safe for concurrent use.
type Estate struct {
	Env map[string]string // what estate.env holds
	Dir string

	mu        sync.Mutex
	processes map[string]*server.Process
	away      map[string]chan struct{} // those that Without has stopped, until the channel is closed
}

// Process returns the process of that name to kill, restart or watch; nil when
// this estate has none.
func (e *Estate) Process(name string) *server.Process {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.processes[name]
}

// Names lists the processes of this estate in starting order.
func (e *Estate) Names() []string {
	var names []string
	for _, name := range order() {
		if e.Process(name) != nil {
			names = append(names, name)
		}
	}
	return names
}

func (e *Estate) add(p *server.Process) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.processes[p.Name] = p
}

// Down stops every process, last to first, and waits for each.
func (e *Estate) Down(ctx context.Context) error {
	var errs []error
	names := order()
	for i := len(names) - 1; i >= 0; i-- {
		if p := e.Process(names[i]); p != nil {
			errs = append(errs, p.Stop(ctx))
		}
	}
	return errors.Join(append(errs, removeIfThere(filepath.Join(e.Dir, envFile)))...)
}

// ErrDied reports a process of the estate that ended by itself.
var ErrDied = errors.New("has died")

// Without stops a process, calls during, and starts the process again whatever
// came of that: same directory, same port. It returns when the process is ready.
// Watch does not take it for a death. One process can be away at a time only once.
func (e *Estate) Without(ctx context.Context, name string, during func() error) error {
	p := e.Process(name)
	if p == nil {
		return fmt.Errorf("this estate has no %s", name)
	}
	back := make(chan struct{})
	e.mu.Lock()
	if e.away == nil {
		e.away = map[string]chan struct{}{}
	}
	if e.away[name] != nil {
		e.mu.Unlock()
		return fmt.Errorf("%s is away already", name)
	}
	e.away[name] = back
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		delete(e.away, name)
		e.mu.Unlock()
		close(back)
	}()
	if err := p.Stop(ctx); err != nil {
		return err
	}
	err := during()
	return errors.Join(err, p.Restart(ctx))
}

// Twins starts n more instances of a service that only its admin port listens for,
// beside the one there is, as somebody does who scales it. Watch does not look at
// them; stop ends them.
func (e *Estate) Twins(ctx context.Context, name string, n int) (stop func(context.Context) error, err error) {
	p := e.Process(name)
	if p == nil {
		return nil, fmt.Errorf("this estate has no %s", name)
	}
	twins := make([]*server.Process, n)
	stop = func(ctx context.Context) error {
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i, twin := range twins {
			if twin != nil {
				wg.Go(func() { errs[i] = twin.Stop(ctx) })
			}
		}
		wg.Wait()
		return errors.Join(errs...)
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range twins {
		wg.Go(func() {
			port, err := server.FreePort(ctx)
			if err != nil {
				errs[i] = err
				return
			}
			admin := fmt.Sprintf("127.0.0.1:%d", port)
			twins[i], errs[i] = p.Another(ctx, filepath.Join(e.Dir, dataDir, fmt.Sprintf("%s-twin-%d", name, i+1)),
				[]string{"PENSTOCK_ADMIN_LISTEN=" + admin}, server.Answers200("http://"+admin+"/ready"))
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, stop(context.WithoutCancel(ctx)))
	}
	return stop, nil
}

// awaitEnd blocks until the process has ended by itself, or ctx ends, which is
// false.
func (e *Estate) awaitEnd(ctx context.Context, p *server.Process) bool {
	for {
		select {
		case <-p.Exited():
		case <-ctx.Done():
			return false
		}
		e.mu.Lock()
		back := e.away[p.Name]
		e.mu.Unlock()
		if back == nil {
			return !p.Running() // it may have come back in between
		}
		select {
		case <-back:
		case <-ctx.Done():
			return false
		}
	}
}

// Watch blocks until ctx ends, which is no failure, or one of the processes
// does; the error then wraps ErrDied and shows the end of its log. A process is
// stopped and restarted meanwhile only by Without.
func (e *Estate) Watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	names := e.Names()
	died := make(chan *server.Process, len(names))
	for _, name := range names {
		p := e.Process(name)
		go func() {
			if e.awaitEnd(ctx, p) {
				died <- p
			}
		}()
	}
	select {
	case <-ctx.Done():
		return nil
	case p := <-died:
		return fmt.Errorf("%s (pid %d) %w; the end of %s", p.Name, p.PID(), ErrDied, p.Tail())
	}
}

// Down stops what an earlier Up left running below dir and nothing else, and
// reports the names of what it stopped. Nothing running is no error. Of what had ended
// without being stopped, say is told.
func Down(ctx context.Context, dir string, say func(string)) ([]string, error) {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	unlock, err := server.Lock(ctx, filepath.Join(dir, lockFile), server.Run{Say: say})
	if err != nil {
		return nil, err
	}
	defer unlock()
	var stopped []string
	var errs []error
	names := order()
	for i := len(names) - 1; i >= 0; i-- {
		at := filepath.Join(dir, dataDir, names[i])
		if id, runs, err := server.Runs(at); err == nil && id != (server.ID{}) && !runs {
			tell(say, "%s (pid %d) had died before; %s has its last words", names[i], id.PID, filepath.Join(dir, names[i]+".log"))
		}
		p, found, err := server.Find(at)
		if err != nil {
			errs = append(errs, err)
		}
		if !found {
			continue
		}
		if err := p.Stop(ctx); err != nil {
			errs = append(errs, err)
		}
		stopped = append(stopped, names[i])
	}
	errs = append(errs, removeIfThere(filepath.Join(dir, envFile)))
	return stopped, errors.Join(errs...)
}

// Running lists the processes below dir that run now, in starting order.
func Running(dir string) ([]string, error) {
	var names []string
	for _, name := range order() {
		_, runs, err := server.Runs(filepath.Join(dir, dataDir, name))
		if err != nil {
			return nil, err
		}
		if runs {
			names = append(names, name)
		}
	}
	return names, nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
