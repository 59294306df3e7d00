package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/deploy/local/server"
)

// demoDir is the demo's place below .run, which make down leaves alone.
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
	options.Dir, options.Detach, options.Say = dir, true, s.progress
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
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Name() == demoDir {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	s.progress("forgot the data in " + dir)
	return nil
}
