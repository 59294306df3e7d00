package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/deploy/local/server"
)

// errProof reports that the demo's estate works but a proof did not hold.
var errProof = errors.New("a proof failed")

// stopWithin bounds the end of the demo.
const stopWithin = time.Minute

// demo starts an estate of its own, runs the proofs on it, and stays until ctx
// ends (with CI=1 until the proofs are done). It leaves nothing behind.
func demo(ctx context.Context, cfg config, s *screen) (err error) {
	dir, err := runDir()
	if err != nil {
		return err
	}
	dir = filepath.Join(dir, demoDir)
	release, err := claim(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()

	options := cfg.estate
	if !cfg.portBase {
		options.PortBase = estate.DemoPortBase
	}
	options.Dir, options.Samples, options.Say = dir, true, s.progress
	s.heading("Penstock: the gate in front of a shared API estate")
	e, err := estate.Up(ctx, options)
	if err != nil {
		return err
	}
	defer func() {
		s.progress("stopping")
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWithin)
		defer cancel()
		err = errors.Join(err, e.Down(stopping))
		s.progress("stopped; nothing is left behind")
	}()
	s.progress("ready")
	return guide(ctx, cfg, s, e)
}

// guide runs the proofs, while watching that nothing dies, and what follows them.
func guide(ctx context.Context, cfg config, s *screen, e *estate.Estate) error {
	watched, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		if err := e.Watch(watched); err != nil {
			cancel(err)
		}
	}()
	failed, err := prove(watched, s, e)
	if err != nil {
		if errors.Is(context.Cause(watched), estate.ErrDied) {
			err = context.Cause(watched)
		}
		if ctx.Err() != nil {
			return nil // the person has seen enough
		}
		return err
	}
	s.heading("Summary")
	if failed > 0 {
		s.print("  %s", s.paint(red, fmt.Sprintf("%d proofs failed", failed)))
	} else {
		s.print("  %s", s.paint(green, "every proof held"))
	}
	showAddresses(s, e)
	if !cfg.unguarded {
		showTries(s, e, ".run/"+demoDir, true)
		s.print("\n  Everything runs until Ctrl-C.\n")
		<-watched.Done()
		if err := context.Cause(watched); errors.Is(err, estate.ErrDied) {
			return err
		}
	}
	if failed > 0 {
		return errProof
	}
	return nil
}

// claim makes the demo's directory its own, with what a demo that was killed
// left in it removed. Release removes it, and .run if it was made for the demo.
func claim(ctx context.Context, dir string) (release func() error, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	lock := dir + ".lock"
	unlock, err := server.Lock(ctx, lock, server.Run{})
	if err != nil {
		return nil, fmt.Errorf("another demo of this clone runs: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		unlock()
		return nil, err
	}
	return func() error {
		defer unlock()
		err := errors.Join(os.RemoveAll(dir), os.Remove(lock))
		_ = os.Remove(filepath.Dir(dir)) // fails when make up has its data there
		return err
	}, nil
}
