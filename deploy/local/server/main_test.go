package server_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"testing"

	"penstock.dev/deploy/local/server"
)

// childEnv makes the test binary play the parent that a test kills: it starts a
// Redis in the directory that the variable names, prints that it is there, and
// waits.
const childEnv = "PENSTOCK_SERVER_TEST_PARENT_OF"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		os.Exit(beParent(dir))
	}
	os.Exit(m.Run())
}

func beParent(dir string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	detach := filepath.Base(dir) == "detached"
	p, err := server.StartRedis(ctx, dir, server.RedisOptions{Run: server.Run{Detach: detach}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stdout, p.PID())
	<-ctx.Done()
	return 0
}
