package server_test

import (
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"penstock.dev/deploy/local/server"
)

// TestFreePortsDiffer guarantees that ports handed out are free, all different
// while their owner lives, and outside the kernel's ephemeral range.
func TestFreePortsDiffer(t *testing.T) {
	t.Parallel()

	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Fatal(err)
	}
	ephemeral, err := strconv.Atoi(strings.Fields(string(b))[0])
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for range 500 {
		port, err := server.FreePort(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if seen[port] {
			t.Fatalf("port %d was handed out twice", port)
		}
		if port >= ephemeral {
			t.Fatalf("port %d lies in the ephemeral range from %d", port, ephemeral)
		}
		seen[port] = true
	}
}

// TestCheckPortsNamesTheHolder guarantees that a port in use is reported with
// who holds it, on whatever address, and that a free one is not reported.
func TestCheckPortsNamesTheHolder(t *testing.T) {
	t.Parallel()

	for _, addr := range []string{"127.0.0.1:0", "127.9.9.9:0", "[::]:0"} {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		err = server.CheckPorts(t.Context(), port)
		if !errors.Is(err, server.ErrPortsInUse) {
			t.Errorf("%s: CheckPorts = %v, want ErrPortsInUse", addr, err)
			continue
		}
		for _, want := range []string{strconv.Itoa(port), "pid " + strconv.Itoa(os.Getpid()), ".test"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %q does not mention %q", addr, err, want)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := server.CheckPorts(t.Context(), port); err != nil {
			t.Errorf("%s: after Close, CheckPorts = %v", addr, err)
		}
	}
}
