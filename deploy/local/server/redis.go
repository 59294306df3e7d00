package server

import (
	"bufio"
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// RedisOptions configures StartRedis.
type RedisOptions struct {
	Port int // 0 picks a free one
	// AppendOnly keeps the data over Restart and Kill (append-only file, synced
	// once a second). Without it a restarted server is empty.
	AppendOnly bool
	Args       []string // further arguments of redis-server, last
	Run
}

// StartRedis starts Debian's redis-server (7 or newer) on 127.0.0.1. The
// server's URL selects database 0.
func StartRedis(ctx context.Context, dir string, o RedisOptions) (*Process, error) {
	path, err := findRedis(ctx, o.Run)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	port, err := orFree(ctx, o.Port, dir, o.Run, addrOf)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	args := []string{
		"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir,
		"--save", "", "--appendonly", yesNo(o.AppendOnly),
	}
	addr := loopback(port)
	return Start(ctx, Spec{
		Name: "redis", Path: path, Args: append(args, o.Args...), Dir: dir,
		Addr: addr, URL: "redis://" + addr + "/0",
		Ready: func(ctx context.Context) error { return pingRedis(ctx, addr) },
		Run:   o.Run,
	})
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// pingRedis wants +PONG, which a server that is still loading does not give.
func pingRedis(ctx context.Context, addr string) error {
	conn, err := dial(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	if answer = strings.TrimSpace(answer); answer != "+PONG" {
		return fmt.Errorf("PING answered %q", answer)
	}
	return nil
}
