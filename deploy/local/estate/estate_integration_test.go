//go:build integration

package estate_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/deploy/local/server"
)

// pids reads the pid files of an estate.
func pids(t *testing.T, dir string) map[string]int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.pid"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		found[strings.TrimSuffix(filepath.Base(file), ".pid")] = pid
	}
	return found
}

// get asks as acme and returns the status.
func get(t *testing.T, e *estate.Estate, url string) int {
	t.Helper()
	keys, err := e.Keys()
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", keys["ACME_KEY"])
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}

// TestIntegrationUpIsIdempotent guarantees what people rely on when they call
// make up and make down again and again: nothing that runs is touched, what was
// killed comes back in its place, the variables of the first call hold, data and
// keys survive a stop, every decision of before and after can be searched for, and
// afterwards nothing is left running.
func TestIntegrationUpIsIdempotent(t *testing.T) {
	dir := t.TempDir()
	t.Cleanup(func() {
		if _, err := estate.Down(context.WithoutCancel(t.Context()), dir, nil); err != nil {
			t.Error(err)
		}
	})
	up := func(o estate.Options) *estate.Estate {
		t.Helper()
		o.Dir, o.Detach, o.Volatile, o.Say = dir, true, true, func(s string) { t.Log(s) }
		e, err := estate.Up(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}

	first := up(estate.Options{Gateways: 2, Samples: true, Search: estate.WithElasticsearch})
	running := pids(t, dir)
	for _, name := range []string{"redis", "postgres", "kafka", "sample", "rule-admin", "outbox-relay", "threshold-watcher", "billing", "gateway", "gateway-2", "elasticsearch", "usage-indexer"} {
		if running[name] == 0 {
			t.Errorf("no pid file of %s", name)
		}
	}
	for _, name := range []string{"GATEWAY_GRPC", "GATEWAY_GRPC_2"} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", first.Env[name])
		if err != nil {
			t.Errorf("%s=%q: %v", name, first.Env[name], err)
			continue
		}
		_ = conn.Close()
	}
	for _, url := range []string{first.Env["GATEWAY_URL"], first.Env["GATEWAY_URL_2"]} {
		if got := get(t, first, url+"/search/v1/search?q=tea"); got != http.StatusOK {
			t.Errorf("a request to %s as acme is answered %d", url, got)
		}
	}

	awaitDocuments(t, first, 2) // one that had not been sent would die with the gateway

	victim, err := server.Identify(running["gateway"])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(victim.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second := up(estate.Options{Gateways: 1, Samples: true})
	for name, pid := range pids(t, dir) {
		if (pid != running[name]) != (name == "gateway") {
			t.Errorf("%s had pid %d and has %d; only the gateway was killed", name, running[name], pid)
		}
	}
	if second.Env["GATEWAY_URL_2"] == "" || second.Env["GATEWAY_URL"] != first.Env["GATEWAY_URL"] {
		t.Errorf("the second call made another estate: %v", second.Env)
	}

	stopped, err := estate.Down(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(stopped) != len(running) || len(pids(t, dir)) > 0 {
		t.Errorf("Down stopped %v of %v and left %v", stopped, running, pids(t, dir))
	}
	if stopped, err := estate.Down(t.Context(), dir, nil); err != nil || len(stopped) > 0 {
		t.Errorf("the second Down stopped %v, %v", stopped, err)
	}

	third := up(estate.Options{Gateways: 1, Samples: true, Search: estate.WithElasticsearch})
	if got := get(t, third, third.Env["GATEWAY_URL"]+"/search/v1/search?q=tea"); got != http.StatusOK {
		t.Errorf("after a stop the old key is answered %d", got)
	}
	awaitDocuments(t, third, 3)
}

// awaitDocuments wants so many decisions about acme to be found, and no more.
func awaitDocuments(t *testing.T, e *estate.Estate, want int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	url := e.Env["ELASTICSEARCH_URL"] + "/ratelimit-usage-*/_count?q=tenantId:acme"
	for last := int64(-1); ; {
		got, err := count(ctx, url)
		switch {
		case err == nil && got == want:
			return
		case err == nil:
			last = got
		case ctx.Err() == nil:
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%d documents are found, want %d; the end of %s", last, want, e.Process(estate.UsageIndexer).Tail())
		case <-tick.C:
		}
	}
}

// count asks a search store how many documents there are.
func count(ctx context.Context, url string) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	var got struct{ Count int64 }
	err = json.NewDecoder(resp.Body).Decode(&got)
	return got.Count, err
}

// TestIntegrationWithout guarantees that a process which Without has stopped comes
// back in its place with its data, that Watch takes no such stop for a death, and
// that it still sees a real one.
func TestIntegrationWithout(t *testing.T) {
	e, err := estate.Up(t.Context(), estate.Options{Dir: t.TempDir(), Volatile: true, Samples: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Down(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	watched := make(chan error, 1)
	go func() { watched <- e.Watch(t.Context()) }()

	redis := e.Process(estate.Redis)
	before := redis.PID()
	err = e.Without(t.Context(), estate.Redis, func() error {
		if redis.Running() {
			t.Error("Redis runs while it is away")
		}
		return e.Without(t.Context(), estate.Redis, func() error { return nil })
	})
	if err == nil || !strings.Contains(err.Error(), "away already") {
		t.Errorf("err = %v, want that it is away already", err)
	}
	if !redis.Running() || redis.PID() == before {
		t.Errorf("Redis runs: %v, as pid %d after %d; want another run", redis.Running(), redis.PID(), before)
	}
	if err := e.Without(t.Context(), estate.Gateway2, func() error { return nil }); err == nil {
		t.Error("an estate of one gateway did without the second")
	}
	select {
	case err := <-watched:
		t.Fatalf("Watch ended: %v", err)
	default:
	}
	if err := redis.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-watched; !errors.Is(err, estate.ErrDied) {
		t.Errorf("err = %v, want ErrDied", err)
	}
}
