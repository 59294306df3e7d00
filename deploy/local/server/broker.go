package server

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// BrokerOptions configures StartBroker.
type BrokerOptions struct {
	Name         string   // of the process; empty means "kafka"
	KafkaPort    int      // 0 picks a free one
	RegistryPort int      // 0 picks a free one
	Args         []string // further arguments of devbroker, last
	Run
}

// StartBroker builds the development broker of this clone and starts it on
// 127.0.0.1, with its data below dir. Addr of the process is the Kafka address,
// URL the schema registry's.
func StartBroker(ctx context.Context, dir string, o BrokerOptions) (*Process, error) {
	path, err := buildBroker(ctx, o.Run)
	if err != nil {
		return nil, fmt.Errorf("devbroker: %w", err)
	}
	kafka, err1 := orFree(ctx, o.KafkaPort, dir, o.Run, addrOf)
	registry, err2 := orFree(ctx, o.RegistryPort, dir, o.Run, urlOf)
	dir, err3 := filepath.Abs(dir)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, fmt.Errorf("devbroker: %w", err)
	}
	addr, url := loopback(kafka), "http://"+loopback(registry)
	args := []string{
		"-data", filepath.Join(dir, "data"), "-kafka", addr, "-registry", loopback(registry),
	}
	return Start(ctx, Spec{
		Name: cmp.Or(o.Name, "kafka"), Path: path, Args: append(args, o.Args...), Dir: dir,
		Addr: addr, URL: url,
		Ready: func(ctx context.Context) error {
			if err := pingKafka(ctx, addr, brokerNode); err != nil {
				return err
			}
			return Answers200(url + "/")(ctx)
		},
		Run: o.Run,
	})
}

// brokerNode is the id of the only node of the development broker.
const brokerNode = 0

func buildBroker(ctx context.Context, run Run) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	return Build(ctx, root, "deploy/local", "./cmd/devbroker", run)
}

// Build compiles one command of a clone with what its module declares, as CI
// does (GOWORK=off), and returns the binary, bin/<name> of the clone. Module is
// a folder of the clone and pkg a package in it; "." is named after the module.
func Build(ctx context.Context, root, module, pkg string, run Run) (string, error) {
	name := filepath.Base(filepath.Join(module, pkg))
	binary := filepath.Join(root, "bin", name)
	unlock, err := lock(ctx, filepath.Join(root, "bin", "."+name+".lock"), run.say)
	if err != nil {
		return "", err
	}
	defer unlock()
	cmd := exec.CommandContext(ctx, "go", "build", "-C", filepath.Join(root, module), "-trimpath", "-o", binary, pkg)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	var downloaded atomic.Int64
	stop := reportWhile(10*time.Second, func(elapsed time.Duration) {
		got := ""
		if n := downloaded.Load(); n > 0 {
			got = fmt.Sprintf(", %d modules downloaded", n)
		}
		run.say("%-13s compiling for %v%s (once; then it is quick)", name, elapsed, got)
	})
	complaints := goLines(stderr, &downloaded)
	stop()
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("go build: %w:\n    %s", err, strings.Join(complaints, "\n    "))
	}
	return binary, nil
}

// goLines counts the modules that go says it downloads and returns the other
// lines, at most the first twenty.
func goLines(out io.Reader, downloaded *atomic.Int64) []string {
	const keep = 20
	var lines []string
	scan := bufio.NewScanner(out)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		if strings.HasPrefix(scan.Text(), "go: downloading ") {
			downloaded.Add(1)
		} else if len(lines) < keep {
			lines = append(lines, scan.Text())
		}
	}
	_, _ = io.Copy(io.Discard, out) // after a line that was too long: the writer must not wait
	return lines
}
