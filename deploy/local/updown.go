package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/deploy/local/server"
)

// demoDir is the demo's place below .run.
const demoDir = "demo"

// runDir is .run of this clone.
func runDir() (string, error) {
	root, err := server.Root()
	return filepath.Join(root, ".run"), err
}

// up starts whatever does not run and says where everything is.
func up(ctx context.Context, cfg config, s *screen) error {
	dir, err := runDir()
	if err != nil {
		return err
	}
	options := cfg.estate
	options.Dir, options.Detach, options.Say, options.Knobs = dir, true, s.progress, knobs(os.Environ())
	e, err := estate.Up(ctx, options)
	if err != nil {
		return err
	}
	s.heading("Penstock is up")
	showAddresses(s, e)
	keys, err := e.Keys()
	if err != nil {
		return err
	}
	showTries(s, e, ".run", len(keys) > 0)
	s.print("\n  Logs are in .run/*.log. make down stops everything.")
	return nil
}

// knobs are the variables of services in an environment.
func knobs(environ []string) []string {
	return slices.DeleteFunc(environ, func(kv string) bool { return !strings.HasPrefix(kv, "PENSTOCK_") })
}

// down stops what up started, and forgets its data when asked to.
func down(ctx context.Context, cfg config, s *screen) error {
	dir, err := runDir()
	if err != nil {
		return err
	}
	stopped, err := estate.Down(ctx, dir, s.progress)
	if err != nil {
		return err
	}
	if len(stopped) == 0 {
		s.progress("nothing of this clone's estate was running")
	} else {
		s.progress("stopped " + strings.Join(stopped, ", "))
	}
	if !cfg.wipe {
		return nil
	}
	if err := wipe(dir); err != nil {
		return err
	}
	s.progress("forgot the data in " + dir)
	return nil
}

// results are what runs have left in .run for people: no state of an estate.
var results = []string{demoDir, filepath.Base(pageFile), "bench.json", "loadtest-*.json"}

// wipe removes what an estate keeps in dir. A dir that is not there holds nothing.
func wipe(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		result := func(pattern string) bool {
			is, _ := filepath.Match(pattern, entry.Name()) // the patterns are good
			return is
		}
		if slices.ContainsFunc(results, result) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}
