// Devbroker serves Kafka and a schema registry for one machine, until SIGINT or
// SIGTERM. It is ready when GET / of the registry answers 200. What it is and
// is not: deploy/local/devbroker/README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"penstock.dev/deploy/local/devbroker"
	"penstock.dev/deploy/local/devbroker/registry"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() { // the next signal finds the default handler again
		<-ctx.Done()
		stop()
	}()
	os.Exit(exec(ctx, os.Args[1:], os.Stderr))
}

// exec runs the broker until ctx ends and returns the exit code: 0 after a
// clean end, 1 after a failure, 2 when the flags are refused. Logs go to w as
// one JSON object a line.
func exec(ctx context.Context, args []string, w io.Writer) int {
	cfg, err := parse(args, w)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		_, _ = fmt.Fprintln(w, err)
		return 2
	}
	log := slog.New(slog.NewJSONHandler(w, nil)).With("service", "devbroker")
	b, err := devbroker.Start(ctx, cfg, log)
	if err != nil {
		log.Error("not started", "error", err.Error())
		return 1
	}
	log.Info("ready", "kafka", b.Brokers(), "registry", b.RegistryURL(), "data", cfg.DataDir)
	<-ctx.Done()
	log.Info("stopping")
	b.Close()
	return 0
}

// flags are the program's, and where they end up.
func flags(cfg *devbroker.Config, level *string) *flag.FlagSet {
	fs := flag.NewFlagSet("devbroker", flag.ContinueOnError)
	fs.StringVar(&cfg.Kafka, "kafka", "127.0.0.1:19092", "where Kafka clients connect; port 0 picks a free one")
	fs.StringVar(&cfg.Registry, "registry", "127.0.0.1:18081", "where the schema registry listens; port 0 picks a free one")
	fs.StringVar(&cfg.DataDir, "data", "", "directory that keeps everything; empty keeps it in memory")
	fs.BoolVar(&cfg.Sync, "sync", false, "force every batch to disk before it is acknowledged")
	fs.DurationVar(&cfg.CompactEvery, "compact-every", 10*time.Second, "how often compacted topics are compacted and expired records removed; 0 never")
	fs.StringVar(level, "compatibility", string(registry.FullTransitive), "level of subjects without one of their own")
	return fs
}

func parse(args []string, w io.Writer) (devbroker.Config, error) {
	var cfg devbroker.Config
	var level string
	fs := flags(&cfg, &level)
	fs.SetOutput(w)
	if err := fs.Parse(args); err != nil {
		return cfg, err
	}
	if fs.NArg() > 0 {
		return cfg, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	l, err := registry.ParseLevel(level)
	cfg.Level = l
	return cfg, err
}
