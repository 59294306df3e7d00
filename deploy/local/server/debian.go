package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A Tool is software that comes as Debian packages.
type Tool int

// The tools that servers need.
const (
	Redis    Tool = iota // redis-server 7 or newer
	Postgres             // PostgreSQL 15 or newer
	Java                 // a Java 17 or newer, and Maven
	Python               // Python 3 with Kafka and Avro, what deploy/examples/consumer needs
	Kcat                 // kcat
	Chromium             // a Chromium that runs without a screen, and fonts for it
)

// ErrMissing reports software that is not installed and could not be. The text
// names the Debian packages.
var ErrMissing = errors.New("missing software")

// packages are what apt-get is asked for.
func (t Tool) packages() []string {
	switch t {
	case Redis:
		return []string{"redis-server"}
	case Postgres:
		return []string{"postgresql"}
	case Java:
		return []string{"default-jre-headless", "maven"}
	case Python:
		return []string{"python3-kafka", "python3-avro", "python3-snappy", "python3-lz4", "python3-zstandard"}
	case Kcat:
		return []string{"kcat"}
	case Chromium:
		return []string{"chromium-headless-shell", "fonts-noto-core"}
	default:
		return nil
	}
}

func (t Tool) present() bool {
	switch t {
	case Redis:
		_, err := exec.LookPath("redis-server")
		return err == nil
	case Postgres:
		_, err := postgresBin()
		return err == nil
	case Java:
		_, err1 := javaPath()
		_, err2 := exec.LookPath("mvn")
		return err1 == nil && err2 == nil
	case Python:
		_, err := FindPython()
		return err == nil
	case Kcat:
		_, err := exec.LookPath("kcat")
		return err == nil
	case Chromium:
		_, err := chromiumPath()
		return err == nil
	default:
		return false
	}
}

// Need makes sure that tools are installed. When run as root it installs the
// missing ones in one apt-get call, and keeps Debian from starting them;
// otherwise it returns an error that wraps ErrMissing and names the packages.
func Need(ctx context.Context, run Run, tools ...Tool) error {
	if len(missing(tools)) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		names := strings.Join(missing(tools), " ")
		return fmt.Errorf("%w: install %s (as root: apt-get install --no-install-recommends %s)", ErrMissing, names, names)
	}
	cache, err := cacheDir()
	if err != nil {
		return err
	}
	unlock, err := lock(ctx, filepath.Join(cache, "apt.lock"), run.say)
	if err != nil {
		return err
	}
	defer unlock()
	if names := missing(tools); len(names) > 0 { // nobody else installed them meanwhile
		if err := aptInstall(ctx, run, names); err != nil {
			return err
		}
	}
	if names := missing(tools); len(names) > 0 {
		return fmt.Errorf("%w: still missing after installing %s: is this Debian too old?", ErrMissing, strings.Join(names, " "))
	}
	return nil
}

func missing(tools []Tool) []string {
	var names []string
	for _, t := range tools {
		if !t.present() {
			names = append(names, t.packages()...)
		}
	}
	return names
}

// aptInstall installs packages and starts nothing.
func aptInstall(ctx context.Context, run Run, names []string) error {
	run.say("debian: installing %s (a minute or so, once)", strings.Join(names, " "))
	begun := time.Now()
	restore, err := keepQuiet()
	if err != nil {
		return fmt.Errorf("debian: %w", err)
	}
	// Once begun it is finished, also by Ctrl-C: packages that are installed by
	// half keep every later installation from working.
	ctx = context.WithoutCancel(ctx)
	err = apt(ctx, "update")
	if err == nil {
		err = apt(ctx, append([]string{"install", "-y", "--no-install-recommends"}, names...)...)
	}
	if err = errors.Join(err, restore()); err != nil {
		return fmt.Errorf("debian: installing %s: %w", strings.Join(names, " "), err)
	}
	run.say("debian: installed in %v", time.Since(begun).Round(time.Second))
	return nil
}

func apt(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-q", "-o", "DPkg::Lock::Timeout=300"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return fmt.Errorf("apt-get %s: %w:\n    %s", args[0], err, strings.Join(lines[max(0, len(lines)-10):], "\n    "))
}

const (
	policyFile  = "/usr/sbin/policy-rc.d"
	policyAside = "/usr/sbin/policy-rc.d.before-penstock"
	clusterConf = "/etc/postgresql-common/createcluster.d/penstock.conf"
)

// keepQuiet stops Debian from starting services and from creating a PostgreSQL
// cluster of its own while packages are installed, and returns what puts the
// machine's own policy back. If this process dies in between, the next
// installation puts it back.
func keepQuiet() (restore func() error, err error) {
	restore = func() error {
		err := os.Remove(clusterConf)
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return errors.Join(err, restorePolicy())
	}
	if _, err := os.Stat(policyAside); err == nil {
		if err := restorePolicy(); err != nil {
			return nil, err
		}
	}
	if err := os.Rename(policyFile, policyAside); errors.Is(err, os.ErrNotExist) {
		// There was none; an empty file in its place says so.
		err = os.WriteFile(policyAside, nil, 0o644)
		if err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	if err := os.WriteFile(policyFile, []byte("#!/bin/sh\nexit 101\n"), 0o755); err != nil { //nolint:gosec // dpkg runs it
		return nil, errors.Join(err, restore())
	}
	if err := os.MkdirAll(filepath.Dir(clusterConf), 0o755); err != nil {
		return nil, errors.Join(err, restore())
	}
	if err := os.WriteFile(clusterConf, []byte("create_main_cluster = false\n"), 0o644); err != nil {
		return nil, errors.Join(err, restore())
	}
	return restore, nil
}

func restorePolicy() error {
	info, err := os.Stat(policyAside)
	if err != nil {
		return err
	}
	if info.Size() > 0 {
		return os.Rename(policyAside, policyFile)
	}
	if err := os.Remove(policyFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Remove(policyAside)
}

func findRedis(ctx context.Context, run Run) (string, error) {
	if err := Need(ctx, run, Redis); err != nil {
		return "", err
	}
	return exec.LookPath("redis-server")
}

func findPostgres(ctx context.Context, run Run) (string, error) {
	if err := Need(ctx, run, Postgres); err != nil {
		return "", err
	}
	return postgresBin()
}

// postgresBin is the directory of the newest PostgreSQL that Debian installed.
func postgresBin() (string, error) {
	const oldest = 15
	paths, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return "", err
	}
	major := func(path string) int {
		n, _ := strconv.Atoi(strings.Split(path, "/")[4])
		return n
	}
	slices.SortFunc(paths, func(a, b string) int { return major(b) - major(a) })
	for _, path := range paths {
		if _, err := os.Stat(filepath.Join(filepath.Dir(path), "postgres")); err == nil && major(path) >= oldest {
			return filepath.Dir(path), nil
		}
	}
	return "", fmt.Errorf("%w: PostgreSQL %d or newer", ErrMissing, oldest)
}

// javaPath prefers JAVA_HOME to the PATH, as Java's own tools do.
func javaPath() (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		if path := filepath.Join(home, "bin", "java"); fileExists(path) {
			return path, nil
		}
	}
	return exec.LookPath("java")
}

func fileExists(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
