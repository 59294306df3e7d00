package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/deploy/local/proof"
	"penstock.dev/deploy/local/server"
)

// errProof reports that the demo's estate works but a proof did not hold.
var errProof = errors.New("a proof failed")

// stopWithin bounds the end of the demo.
const stopWithin = time.Minute

// demo starts an estate of its own, runs the proofs on it, and stays until ctx
// ends (with CI=1 until the proofs are done). It leaves the proofs' page behind
// and nothing else.
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
		s.progress("stopped; nothing is left behind but " + pageFile)
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
	page, err := prove(watched, s, e)
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
	summary := s.paint(green, fmt.Sprintf("all %d proofs held", len(page.Results)))
	if failed := page.Failed(); failed > 0 {
		summary = s.paint(red, fmt.Sprintf("%d of %d proofs failed", failed, len(page.Results)))
	}
	s.print("  %s, in %s", summary, page.Took())
	if left := len(page.Left); left > 0 {
		s.print("  %d not run, for want of what they need", left)
	}
	s.print("  The proofs as a page: %s", pageFile)
	showAddresses(s, e)
	if !cfg.unguarded {
		showTries(s, e, ".run/"+demoDir, true)
		s.print("\n  Everything runs until Ctrl-C.\n")
		<-watched.Done()
		if err := context.Cause(watched); errors.Is(err, estate.ErrDied) {
			return err
		}
	}
	if page.Failed() > 0 {
		return errProof
	}
	return nil
}

// pageFile is where the page of the last demo's proofs is kept, in the clone.
const pageFile = ".run/proof.html"

// prove runs the proofs, shows each, and writes them to the page as they come.
// The error is of what kept further ones from running.
func prove(ctx context.Context, s *screen, e *estate.Estate) (proof.Page, error) {
	page := proof.Page{Began: time.Now(), Place: ".run/" + demoDir}
	path := filepath.Join(filepath.Dir(e.Dir), filepath.Base(pageFile))
	var written error
	keep := func() { written = page.Write(path) }
	err := proof.Run(ctx, e, s.begun, proof.Guide{
		Begins: func(number int, title string) { s.heading(fmt.Sprintf("Proof %d: %s", number, title)) },
		Ended: func(r proof.Result) {
			s.result(r)
			page.Results = append(page.Results, r)
			keep()
		},
		Left: func(title, needs string) {
			page.Left = append(page.Left, [2]string{title, needs})
			s.heading("Not run: " + title)
			s.print("  it needs %s", needs)
		},
	})
	if err != nil {
		page.Stopped = err.Error()
	}
	keep()
	return page, errors.Join(err, written)
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
		_ = os.Remove(filepath.Dir(dir)) // fails when anything is there, of make up or the page
		return err
	}, nil
}
