// Loadtest sends load to a whole system, by a schedule that takes no notice of
// answers, and says whether it held what is promised. README.md has the
// figures.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/loadtest/system"
	"penstock.dev/loadtest/verdict"
)

func main() {
	debug.SetGCPercent(800) // what is measured shares these cores
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// Exit codes besides those of a verdict.
const (
	codeFailed = 1
	codeUsage  = 2
)

const help = `usage: loadtest propagation | decisions | frozen | usage | thresholds | restore | bench [flags]

  propagation   from the commit of a rule's change to where it counts
  decisions     how long a gateway takes for a decision and for a proxied request
  frozen        what a gateway answers, and when, while its counter store hangs
  usage         whether every event becomes one document, whatever is killed and refused meanwhile
  thresholds    from a request that exhausts a quota to its event
  restore       how long an emptied counter store takes to hold what it held
  bench         decisions of a gateway beside those of others, on one Redis

loadtest <command> -h lists the flags.
`

// A command measures one thing. It prints what it measured and returns it, with
// its verdict.
type command struct {
	name string
	run  func(ctx context.Context, c *call, args []string) (report, error)
}

// A report is what is written as JSON.
type report struct {
	Name    string          `json:"name"`
	Machine system.Machine  `json:"machine"`
	Options any             `json:"options"`
	Result  any             `json:"result"`
	Verdict verdict.Verdict `json:"verdict"`

	file any // what is written instead; nil: the report
}

// A call is one run of a command.
type call struct {
	flags    *flag.FlagSet
	system   system.Options
	judge    bool
	out      string
	progress io.Writer
	table    io.Writer
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	commands := []command{{"propagation", runPropagation}, {"decisions", runDecisions}, {"frozen", runFrozen}, {"usage", runUsage}, {"thresholds", runThresholds}, {"restore", runRestore}, {"bench", runBench}}
	for _, cmd := range commands {
		if len(args) == 0 || args[0] != cmd.name {
			continue
		}
		c := newCall(cmd.name, stdout, stderr)
		r, err := cmd.run(ctx, c, args[1:])
		switch {
		case errors.Is(err, flag.ErrHelp):
			return 0
		case errors.Is(err, errUsage):
			return codeUsage
		}
		if err == nil {
			err = c.finish(r)
		}
		if err != nil {
			_, _ = fmt.Fprintf(stderr, "loadtest %s: %v\n", cmd.name, err)
			return codeFailed
		}
		if c.judge {
			return r.Verdict.Code()
		}
		return 0
	}
	_, _ = io.WriteString(stderr, help)
	return codeUsage
}

var errUsage = errors.New("usage")

func newCall(name string, stdout, stderr io.Writer) *call {
	c := &call{flags: flag.NewFlagSet("loadtest "+name, flag.ContinueOnError), progress: stderr, table: stdout}
	c.flags.SetOutput(stderr)
	c.system.Say = func(s string) { c.say("%s", s) }
	c.flags.StringVar(&c.system.EnvFile, "env", "", "estate.env of a system that runs, e.g. .run/estate.env; none: one is started and ends with the run")
	c.flags.StringVar(&c.system.Kafka, "kafka", estate.Embedded, "of a system that is started: embedded or real")
	c.flags.BoolVar(&c.system.Volatile, "volatile", false, "of a system that is started: PostgreSQL does not flush to disk, which tells the disk's share")
	c.flags.BoolVar(&c.system.Anywhere, "anywhere", false, "allow a system that is not on this machine")
	c.flags.BoolVar(&c.judge, "verdict", false, "exit with 1 when a promise was not held, with 3 when there is no verdict")
	c.flags.StringVar(&c.out, "out", "", "file for the figures as JSON; none: .run/loadtest-"+name+".json in the clone")
	return c
}

func (c *call) parse(args []string) error {
	if err := c.flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return errUsage // the flag set has said what is wrong
	}
	if c.flags.NArg() > 0 {
		return c.refuse("unexpected %q", c.flags.Args())
	}
	if k := c.system.Kafka; k != estate.Embedded && k != estate.Real {
		return c.refuse("-kafka=%s: want embedded or real", k)
	}
	return nil
}

// refuse says what is wrong with the arguments.
func (c *call) refuse(format string, args ...any) error {
	_, _ = fmt.Fprintf(c.progress, c.flags.Name()+": "+format+"\n", args...)
	return errUsage
}

func (c *call) say(format string, args ...any) {
	_, _ = fmt.Fprintf(c.progress, format+"\n", args...)
}

// finish prints the verdict and writes the file.
func (c *call) finish(r report) error {
	m := r.Machine
	_, _ = fmt.Fprintf(c.table, "\n%d CPUs (%s), one flush to disk p50 %v and p99 %v, load %s before, %s after, commit %s\n",
		m.CPUs, m.CPU, m.Flush.P50, m.Flush.P99, m.LoadBefore, m.LoadAfter, m.Commit)
	if err := r.Verdict.Print(c.table); err != nil {
		return err
	}
	if r.file == nil {
		r.file = r
	}
	b, err := json.MarshalIndent(r.file, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.out), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(c.out, append(b, '\n'), 0o644); err != nil {
		return err
	}
	c.say("figures in %s", c.out)
	return nil
}

// open returns the system and where its figures go.
func (c *call) open(ctx context.Context, name string) (*system.System, error) {
	s, err := system.Open(ctx, c.system)
	if err == nil && c.out == "" {
		c.out = filepath.Join(s.Root, ".run", "loadtest-"+name+".json")
	}
	return s, err
}
