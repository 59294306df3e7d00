package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lowestPort is the first port that FreePort hands out. Those below are left to
// estates on fixed ports.
const lowestPort = 20000

// FreePort returns a TCP port that nobody listens on, and that no other caller
// of FreePort, in any process of this machine, gets while this process lives.
//
// It lies below the kernel's ephemeral range: a client that reconnects to a
// dead server there can never be given the server's own port as its source,
// connect to itself, and keep the server from coming back.
func FreePort(ctx context.Context) (int, error) {
	high := ephemeralFrom()
	if high-lowestPort < 1000 {
		return 0, fmt.Errorf("ports %d to %d: too few outside net.ipv4.ip_local_port_range", lowestPort, high-1)
	}
	var lc net.ListenConfig
	for range 200 {
		port := lowestPort + rand.IntN(high-lowestPort)
		fd, err := reserve(port)
		if err != nil {
			continue
		}
		trial, err := lc.Listen(ctx, "tcp", ":"+strconv.Itoa(port))
		if err != nil {
			_ = syscall.Close(fd)
			continue
		}
		return port, trial.Close()
	}
	return 0, errors.New("no free port found in 200 tries")
}

// reserve binds an abstract socket named after the port: a lock without a file,
// which the kernel frees when this process ends. It is a bare descriptor because
// nothing may close it before that, the garbage collector included.
func reserve(port int) (fd int, err error) {
	fd, err = syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: "@penstock-port-" + strconv.Itoa(port)}); err != nil {
		_ = syscall.Close(fd)
		return -1, err
	}
	return fd, nil
}

// orFree returns port; for 0 the port of the server that already runs in dir
// and will be taken over, which of says where to look for; else a free one.
func orFree(ctx context.Context, port int, dir string, run Run, of func(record) string) (int, error) {
	if port != 0 {
		return port, nil
	}
	if run.Detach {
		if rec, err := readRecord(dir); err == nil && rec.Alive() {
			_, digits, _ := net.SplitHostPort(strings.TrimPrefix(of(rec), "http://"))
			return strconv.Atoi(digits)
		}
	}
	return FreePort(ctx)
}

func addrOf(r record) string { return r.Addr }
func urlOf(r record) string  { return r.URL }

func secureAddrOf(r record) string { return r.SecureAddr }

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func ephemeralFrom() int {
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 32768
	}
	var from int
	if _, err := fmt.Sscan(string(b), &from); err != nil {
		return 32768
	}
	return from
}

// A Holder is a process that listens on a port.
type Holder struct {
	Port    int
	PID     int    // 0 when it belongs to another user and cannot be seen
	UID     int    // its user
	Command string // as it was started
}

// String names the holder for a message.
func (h Holder) String() string {
	if h.PID == 0 {
		return fmt.Sprintf("port %d is held by a process of user id %d", h.Port, h.UID)
	}
	return fmt.Sprintf("port %d is held by pid %d: %s", h.Port, h.PID, h.Command)
}

// ErrPortsInUse reports fixed ports that somebody else listens on. The text
// names each port and its holder.
var ErrPortsInUse = errors.New("ports in use")

// vanishing is how long a port may be held by nobody who can be seen: a process
// that was killed keeps its sockets until the last of its threads has ended.
const vanishing = 2 * time.Second

// CheckPorts returns an error that wraps ErrPortsInUse when one of ports is
// listened on, on whatever address.
func CheckPorts(ctx context.Context, ports ...int) error {
	held, err := Holders(ports...)
	unseen := func(h Holder) bool { return h.PID == 0 }
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); err == nil && slices.ContainsFunc(held, unseen) && time.Since(begun) < vanishing; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			held, err = Holders(ports...)
		}
	}
	if err != nil || len(held) == 0 {
		return err
	}
	texts := make([]string, len(held))
	for i, h := range held {
		texts[i] = "\n    " + h.String()
	}
	return fmt.Errorf("%w:%s", ErrPortsInUse, strings.Join(texts, ""))
}

// Holders returns who listens on which of ports, in their order.
func Holders(ports ...int) ([]Holder, error) {
	type socket struct {
		inode string
		uid   int
	}
	listening := map[int]socket{}
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		err := eachListener(file, func(port, uid int, inode string) { listening[port] = socket{inode, uid} })
		if err != nil && !errors.Is(err, os.ErrNotExist) { // no IPv6 in this kernel
			return nil, err
		}
	}
	var held []Holder
	for _, port := range ports {
		s, ok := listening[port]
		if !ok {
			continue
		}
		h := Holder{Port: port, UID: s.uid, PID: owner(s.inode)}
		if h.PID != 0 {
			h.Command = command(h.PID)
		}
		held = append(held, h)
	}
	return held, nil
}

// eachListener reports the listening sockets of a file in the form of
// /proc/net/tcp: slot, local address, remote address, state, queues, timer,
// retransmits, uid, timeout, inode.
func eachListener(file string, report func(port, uid int, inode string)) error {
	const listen = "0A"
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	lines.Scan() // the heading
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || fields[3] != listen {
			continue
		}
		_, hex, _ := strings.Cut(fields[1], ":")
		port, err := strconv.ParseUint(hex, 16, 16)
		if err != nil {
			return fmt.Errorf("%s: port %q: %w", file, hex, err)
		}
		uid, err := strconv.Atoi(fields[7])
		if err != nil {
			return fmt.Errorf("%s: uid %q: %w", file, fields[7], err)
		}
		report(int(port), uid, fields[9])
	}
	return lines.Err()
}

// owner finds the process that has the socket open, 0 when it cannot be seen.
func owner(inode string) int {
	want := "socket:[" + inode + "]"
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return 0
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && target == want {
			pid, _ := strconv.Atoi(strings.Split(fd, "/")[2])
			return pid
		}
	}
	return 0
}
