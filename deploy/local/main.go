// Local runs Penstock on one machine: `local up` and `local down` for people who
// want to try things, `local demo` for a guided run of proofs. The Makefile
// calls it; README.md says what the variables are.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

const usage = `usage: local up | down | demo

  up     start whatever of the estate does not run, in the background
  down   stop what up started (WIPE=1: and forget its data)
  demo   an estate of its own, with proofs; ends with Ctrl-C (CI=1: by itself)

Variables: PORT_BASE KAFKA GATEWAYS SAMPLES OPENSEARCH SEARCH REDIS_URL DATABASE_URL
KAFKA_BROKERS SCHEMA_REGISTRY_URL ELASTICSEARCH_URL WIPE CI. See deploy/local/README.md.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() { // the next signal finds the default handler again
		<-ctx.Done()
		stop()
	}()
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stdout))
}

// run returns the exit code: 0 done, 1 failed, 2 wrong usage.
func run(ctx context.Context, args []string, getenv func(string) string, out io.Writer) int {
	commands := map[string]func(context.Context, config, *screen) error{"up": up, "down": down, "demo": demo}
	if len(args) != 1 || commands[args[0]] == nil {
		_, _ = io.WriteString(out, usage)
		return 2
	}
	s := newScreen(out, getenv)
	cfg, err := parseConfig(getenv)
	if err != nil {
		s.failure(err)
		return 2
	}
	switch err := commands[args[0]](ctx, cfg, s); {
	case err == nil:
		return 0
	case errors.Is(err, errProof): // the screen has shown which
		return 1
	case ctx.Err() != nil:
		s.failure(fmt.Errorf("interrupted: %w", err))
		return 1
	default:
		s.failure(err)
		return 1
	}
}
