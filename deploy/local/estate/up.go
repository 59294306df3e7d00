package estate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"penstock.dev/deploy/local/server"
)

// Up starts what does not run yet and returns when all of it is ready, and the
// sample catalogue is enforced. What a detached Up left running below the same
// directory is left alone, and the options that it was started with stay in
// force as long as any of it runs.
//
// When Up fails, what it started detached stays for Down to stop; otherwise all
// of it is stopped.
func Up(ctx context.Context, o Options) (*Estate, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o, err := o.located()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(o.Dir, dataDir), 0o755); err != nil {
		return nil, err
	}
	unlock, err := server.Lock(ctx, filepath.Join(o.Dir, lockFile), server.Run{Say: o.Say})
	if err != nil {
		return nil, err
	}
	defer unlock()
	u, err := prepare(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := u.start(ctx); err != nil {
		if !o.Detach {
			err = errors.Join(err, u.e.Down(context.WithoutCancel(ctx)))
		}
		return nil, err
	}
	return u.e, nil
}

// An undertaking is one Up in progress.
type undertaking struct {
	Options
	v       variables // those in force
	state   state
	running []string // found running before anything was started
	e       *Estate
}

// ErrRunning reports that an estate was left running where one that ends with
// its starter is wanted.
var ErrRunning = errors.New("an estate runs already")

// prepare decides options and ports, and refuses ports that a stranger holds.
func prepare(ctx context.Context, o Options) (*undertaking, error) {
	running, err := Running(o.Dir)
	if err != nil {
		return nil, err
	}
	if len(running) > 0 && !o.Detach {
		return nil, fmt.Errorf("%w in %s: %s", ErrRunning, o.Dir, strings.Join(running, ", "))
	}
	before, err := readState(o.Dir)
	have := err == nil
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	want := o.variables()
	if have && len(running) > 0 {
		if before.Variables != want {
			tell(o.Say, "runs with the variables of the first call, which stay in force:")
			tell(o.Say, "%s", before.Variables)
		}
		want = before.Variables
	} else if have {
		if err := sameData(before.Variables, want); err != nil {
			return nil, err
		}
	}
	st, err := loadState(ctx, o.Dir, want)
	if err != nil {
		return nil, err
	}
	u := &undertaking{
		Options: o, v: want, state: st, running: running,
		e: &Estate{Dir: o.Dir, processes: map[string]*server.Process{}},
	}
	u.e.Env = u.env()
	return u, u.checkPorts(ctx)
}

// ErrOtherData reports options that do not fit the data of an earlier run.
var ErrOtherData = errors.New("the data of this estate was made with other variables")

// sameData refuses what would leave the topics of an estate and its database to
// contradict each other.
func sameData(kept, want variables) error {
	if kept.Kafka == want.Kafka && kept.KafkaBrokers == want.KafkaBrokers && kept.DatabaseURL == want.DatabaseURL {
		return nil
	}
	return fmt.Errorf("%w: %s\n  give the same, or forget the data first: make down WIPE=1", ErrOtherData, kept)
}

// String shows them as they are given to make.
func (o variables) String() string {
	words := []string{"KAFKA=" + o.Kafka, "GATEWAYS=" + strconv.Itoa(o.Gateways)}
	if o.PortBase != 0 {
		words = append(words, "PORT_BASE="+strconv.Itoa(o.PortBase))
	}
	if !o.Samples {
		words = append(words, "SAMPLES=0")
	}
	switch o.Search {
	case WithOpenSearch:
		words = append(words, "OPENSEARCH=1")
	case WithoutSearch:
		words = append(words, "SEARCH=0")
	}
	for _, other := range [][2]string{
		{"REDIS_URL", o.RedisURL},
		{"DATABASE_URL", o.DatabaseURL},
		{"KAFKA_BROKERS", o.KafkaBrokers},
		{"ELASTICSEARCH_URL", o.ElasticsearchURL},
	} {
		if other[1] != "" {
			words = append(words, other[0]+"=…") // there may be a password in it
		}
	}
	return strings.Join(words, " ")
}

func (u *undertaking) checkPorts(ctx context.Context) error {
	var ports []int
	for _, p := range u.parts() {
		if !slices.Contains(u.running, p.name) {
			ports = append(ports, p.ports...)
		}
	}
	if err := server.CheckPorts(ctx, ports...); err != nil {
		return fmt.Errorf("%w\n  stop them, or choose other ports, e.g. PORT_BASE=%d", err, max(u.v.PortBase, DefaultPortBase)+1000)
	}
	return nil
}

// A part is one process of the estate. Parts of one stage start together, after
// those of the stage before are ready.
type part struct {
	name  string
	stage int
	ports []int
	start func(ctx context.Context, run server.Run) (*server.Process, error)
}

// start starts the parts by stages and, beside them all, the search store and its
// indexer: nothing waits for them but the end.
func (u *undertaking) start(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	built := make(chan error, 1)
	go func() { built <- u.build(ctx) }()
	if err := u.needTools(ctx); err != nil {
		return errors.Join(err, <-built)
	}
	ready, searched := make(chan struct{}), make(chan error, 1)
	go func() {
		err := u.startSearch(ctx, ready)
		if err != nil {
			cancel(err)
		}
		searched <- err
	}()
	err := u.startStages(ctx, built, ready)
	if err != nil {
		cancel(err)
	}
	if errSearch := <-searched; errSearch != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = errSearch // what else failed only did because of it
	}
	return err
}

// startStages starts everything but what searches, and closes ready when that
// could be started too. The sample catalogue comes last.
func (u *undertaking) startStages(ctx context.Context, built <-chan error, ready chan<- struct{}) error {
	err := u.startStage(ctx, servers)
	if err = errors.Join(err, <-built); err != nil {
		return err
	}
	close(ready)
	for _, stage := range []int{control, data} {
		if err := u.startStage(ctx, stage); err != nil {
			return err
		}
	}
	if err := writeEnv(filepath.Join(u.Dir, envFile), "Where everything is. Written by make up; set -a; . .run/estate.env", u.e.Env); err != nil {
		return err
	}
	if !u.v.Samples {
		return nil
	}
	return u.seed(ctx)
}

// startSearch starts the search store at once, and the indexer when its other
// sources and its binary are there.
func (u *undertaking) startSearch(ctx context.Context, ready <-chan struct{}) error {
	for _, p := range u.searchParts() {
		if p.name == UsageIndexer {
			select {
			case <-ready:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := u.startPart(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// startStage starts the parts of one stage at once and waits for all of them.
func (u *undertaking) startStage(ctx context.Context, stage int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	for _, p := range u.parts() {
		if p.stage != stage {
			continue
		}
		wg.Go(func() {
			err := u.startPart(ctx, p)
			if err == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if len(errs) == 0 { // the rest only ended because this one failed
				errs = append(errs, err)
			}
			cancel(err)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (u *undertaking) startPart(ctx context.Context, p part) error {
	begun := time.Now()
	before, ran, err := server.Runs(u.dir(p.name))
	if err != nil {
		return err
	}
	process, err := p.start(ctx, server.Run{
		Detach: u.Detach, Say: u.Say,
		LogPath: filepath.Join(u.Dir, p.name+".log"), PIDPath: filepath.Join(u.Dir, p.name+".pid"),
	})
	if err != nil {
		return err
	}
	u.e.add(process)
	if ran && before.PID == process.PID() {
		tell(u.Say, "%-13s runs already (pid %d)", p.name, process.PID())
		return nil
	}
	tell(u.Say, "%-13s %-22s ready after %.1f s", p.name, where(process), time.Since(begun).Seconds())
	return nil
}

func where(p *server.Process) string {
	switch {
	case p.Name == Registry: // its broker is of no use to anybody
		return strings.TrimPrefix(p.URL, "http://")
	case p.Addr == "":
		return "pid " + strconv.Itoa(p.PID())
	default:
		return p.Addr
	}
}

func (u *undertaking) dir(name string) string { return filepath.Join(u.Dir, dataDir, name) }

func tell(say func(string), format string, args ...any) {
	if say != nil {
		say(fmt.Sprintf(format, args...))
	}
}
