package server_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock.dev/deploy/local/server"
)

// The test binary plays other programs too, so that these tests need nothing
// but Go. roleEnv says which one, argEnv with what.
const (
	roleEnv = "PENSTOCK_SERVER_TEST_ROLE"
	argEnv  = "PENSTOCK_SERVER_TEST_ARG"
)

func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var err error
	switch role := os.Getenv(roleEnv); role {
	case "":
		os.Exit(m.Run())
	case "echo":
		err = echo(ctx, os.Getenv(argEnv))
	case "parent", "detaching parent":
		err = own(ctx, os.Getenv(argEnv), role != "parent")
	case "locker":
		err = hold(ctx, os.Getenv(argEnv))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// echo is a server: it sends back every line. "stubborn" does not end by
// SIGTERM, "mute" never answers, "broken" ends at once.
func echo(ctx context.Context, addr string) error {
	_, _ = fmt.Fprintln(os.Stdout, "echo says hello")
	switch addr {
	case "broken":
		return errors.New("echo has no ears")
	case "mute":
		<-ctx.Done()
		return nil
	}
	addr, stubborn := strings.CutPrefix(addr, "stubborn ")
	if stubborn {
		ctx = context.WithoutCancel(ctx)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	go func() {
		<-ctx.Done()
		_ = l.Close()
	}()
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go func() { _, _ = io.Copy(conn, conn) }()
	}
}

// own starts an echo server below dir, prints its pid, and waits.
func own(ctx context.Context, dir string, detach bool) error {
	port, err := server.FreePort(ctx)
	if err != nil {
		return err
	}
	p, err := server.Start(ctx, echoSpec(dir, port, server.Run{Detach: detach}))
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintln(os.Stdout, p.PID())
	<-ctx.Done()
	return nil
}

// hold takes a lock, says so, and waits.
func hold(ctx context.Context, path string) error {
	if _, err := server.Lock(ctx, path, server.Run{}); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(os.Stdout, "locked")
	<-ctx.Done()
	return nil
}

// echoSpec describes an echo server.
func echoSpec(dir string, port int, run server.Run) server.Spec {
	addr := "127.0.0.1:" + strconv.Itoa(port)
	return server.Spec{
		Name: "echo", Path: os.Args[0], Dir: dir, Addr: addr, Run: run,
		Env: []string{roleEnv + "=echo", argEnv + "=" + addr},
		Ready: func(ctx context.Context) error {
			_, err := says(ctx, addr, "ready?")
			return err
		},
	}
}

// says sends one line to an echo server and returns what comes back.
func says(ctx context.Context, addr, line string) (string, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, line+"\n"); err != nil {
		return "", err
	}
	back, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(back), err
}

// play starts the test binary in a role and returns it with the first line that
// it prints. It is killed at the end of the test.
func play(t *testing.T, role, arg string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"="+role, argEnv+"="+arg)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return cmd, strings.TrimSpace(line)
}

// eventually polls until ok, for at most 30 s.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("not within 30 s: %s", what)
		case <-tick.C:
		}
	}
}

func logged(t *testing.T) server.Run { return server.Run{Say: func(s string) { t.Log(s) }} }

// stopLater stops p at the end of the test.
func stopLater(t *testing.T, p *server.Process) {
	t.Cleanup(func() {
		if err := p.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
}
