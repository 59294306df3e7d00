package server

import (
	"bufio"
	"context"
	"crypto/sha256"
	_ "embed" // the poms and digests
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// ErrDigest reports a downloaded file that is not the one this repository was
// tested with. The text names it.
var ErrDigest = errors.New("digest mismatch")

// A Bundle is a set of jars that Maven resolves from a pom.
type Bundle struct {
	Name, Version string
	Size          string   // for people, e.g. "56 MB in 83 jars"
	POM           string   // what to resolve
	Digests       string   // every jar that it must resolve to, in the form of sha256sum
	Exclude       []string // group ids left out
	Without       []string // folders of an archive that are not unpacked, with a slash at the end
}

var (
	//go:embed kafka-4.3.1.pom.xml
	kafkaPOM string
	//go:embed kafka-4.3.1.sha256
	kafkaDigests string
	//go:embed debezium-3.6.1.Final.pom.xml
	debeziumPOM string
	//go:embed debezium-3.6.1.Final.sha256
	debeziumDigests string
	//go:embed elasticsearch-8.19.21.pom.xml
	elasticsearchPOM string
	//go:embed elasticsearch-8.19.21.sha256
	elasticsearchDigests string
	//go:embed opensearch-2.19.6.pom.xml
	openSearchPOM string
	//go:embed opensearch-2.19.6.sha256
	openSearchDigests string
)

// kafkaJars run a broker, its tools and a Connect worker.
func kafkaJars() Bundle {
	return Bundle{Name: "kafka", Version: "4.3.1", Size: "56 MB", POM: kafkaPOM, Digests: kafkaDigests}
}

// debeziumJars are the PostgreSQL connector, as a plugin folder.
func debeziumJars() Bundle {
	return Bundle{
		Name: "debezium", Version: "3.6.1.Final", Size: "18 MB", POM: debeziumPOM, Digests: debeziumDigests,
		Exclude: []string{"org.apache.kafka", "org.slf4j"},
	}
}

// elasticsearchZip is a whole distribution in one archive. Without the modules
// for licences, security and tracing it starts a fifth sooner.
func elasticsearchZip() Bundle {
	return Bundle{
		Name: "elasticsearch", Version: "8.19.21", Size: "107 MB", POM: elasticsearchPOM, Digests: elasticsearchDigests,
		Without: []string{"modules/x-pack-core/", "modules/x-pack-security/", "modules/apm/"},
	}
}

// openSearchJars run a node of OpenSearch.
func openSearchJars() Bundle {
	return Bundle{Name: "opensearch", Version: "2.19.6", Size: "49 MB", POM: openSearchPOM, Digests: openSearchDigests}
}

// A Fetcher puts the jars of a bundle into an empty directory.
type Fetcher func(ctx context.Context, b Bundle, into string, say func(string, ...any)) error

// fetch returns the directory with the verified jars of a bundle, under cache,
// downloading them when they are not there. Any number of processes may ask at
// once: one downloads. A directory that exists is whole, because it is renamed
// into place after every digest was checked.
func fetch(ctx context.Context, cache string, b Bundle, get Fetcher, say func(string, ...any)) (string, error) {
	dir := filepath.Join(cache, b.Name+"-"+b.Version)
	if verify(dir, b.Digests) == nil {
		return dir, nil
	}
	// One lock for all bundles: Maven's own repository is not made for two at once.
	unlock, err := lock(ctx, filepath.Join(cache, "jars.lock"), say)
	if err != nil {
		return "", err
	}
	defer unlock()
	switch err := verify(dir, b.Digests); {
	case err == nil: // somebody else was quicker
		return dir, nil
	case !errors.Is(err, os.ErrNotExist):
		say("%s %s: the copy in %s is damaged (%v): fetching it again", b.Name, b.Version, dir, err)
	}
	partial := dir + ".partial"
	if err := errors.Join(os.RemoveAll(partial), os.MkdirAll(partial, 0o755)); err != nil {
		return "", err
	}
	say("%s %s: fetching %s with mvn (a minute or so, once; kept in %s)", b.Name, b.Version, b.Size, dir)
	begun := time.Now()
	if err := get(ctx, b, partial, say); err != nil {
		return "", fmt.Errorf("%s %s: %w", b.Name, b.Version, err)
	}
	if err := verify(partial, b.Digests); err != nil {
		return "", fmt.Errorf("%s %s: refused: %w", b.Name, b.Version, err)
	}
	if err := errors.Join(os.RemoveAll(dir), os.Rename(partial, dir)); err != nil {
		return "", err
	}
	say("%s %s: fetched and verified in %v", b.Name, b.Version, time.Since(begun).Round(100*time.Millisecond))
	return dir, nil
}

// verify compares a directory with a list of digests: no file may differ, be
// missing, or be there besides.
func verify(dir, digests string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	want, err := parseDigests(digests)
	if err != nil {
		return err
	}
	for _, e := range entries {
		sum, listed := want[e.Name()]
		if !listed {
			return fmt.Errorf("%w: %s is not in the list", ErrDigest, e.Name())
		}
		delete(want, e.Name())
		got, err := digest(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		if got != sum {
			return fmt.Errorf("%w: %s has SHA-256 %s, want %s", ErrDigest, e.Name(), got, sum)
		}
	}
	for name := range want {
		return fmt.Errorf("%w: %s is missing", ErrDigest, name)
	}
	return nil
}

func parseDigests(list string) (map[string]string, error) {
	want := map[string]string{}
	for line := range strings.Lines(list) {
		sum, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok || len(sum) != 2*sha256.Size {
			return nil, fmt.Errorf("digest list: bad line %q", line)
		}
		want[name] = sum
	}
	return want, nil
}

func digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// jars fetches a bundle into the user's cache with Maven, whose own settings
// say where from.
func jars(ctx context.Context, b Bundle, run Run) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	return fetch(ctx, cache, b, maven, run.say)
}

const copyDependencies = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"

func maven(ctx context.Context, b Bundle, into string, say func(string, ...any)) error {
	work, err := os.MkdirTemp("", "penstock-mvn-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	pom := filepath.Join(work, "pom.xml")
	if err := os.WriteFile(pom, []byte(b.POM), 0o644); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "mvn", "-B", "-f", pom, copyDependencies,
		"-DincludeScope=runtime", "-DexcludeGroupIds="+strings.Join(b.Exclude, ","), "-DoutputDirectory="+into)
	cmd.Dir = work
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return err
	}
	var files atomic.Int64
	stop := reportWhile(5*time.Second, func(elapsed time.Duration) {
		say("%s %s: %d files downloaded after %v …", b.Name, b.Version, files.Load(), elapsed)
	})
	last := mavenLines(out, &files)
	stop()
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("mvn: %w:\n    %s", err, strings.Join(last, "\n    "))
	}
	return nil
}

// mavenLines counts the files that Maven says it has downloaded, and returns
// the last of its errors, or of its lines when it reported none.
func mavenLines(out io.Reader, files *atomic.Int64) []string {
	const keep = 8
	var lines, errs []string
	scan := bufio.NewScanner(out)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		line := strings.TrimPrefix(strings.TrimSpace(scan.Text()), "[INFO] ")
		switch {
		case strings.HasPrefix(line, "Downloaded from"):
			files.Add(1)
		case strings.HasPrefix(line, "[ERROR]"):
			errs = append(errs, line)
		case strings.HasPrefix(line, "Downloading from"), strings.HasPrefix(line, "Progress"):
		default:
			lines = append(lines[max(0, len(lines)-keep):], line)
		}
	}
	if len(errs) > 0 {
		lines = errs[:min(keep, len(errs))]
	}
	return slices.Clip(lines)
}

// reportWhile calls report with the whole seconds elapsed until stop is called:
// after first, and then in steps that double up to a minute.
func reportWhile(first time.Duration, report func(elapsed time.Duration)) (stop func()) {
	begun, done, ended := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for step := first; ; step = min(2*step, time.Minute) {
			timer := time.NewTimer(step)
			select {
			case <-done:
				timer.Stop()
				return
			case <-timer.C:
				report(time.Since(begun).Round(time.Second))
			}
		}
	}()
	return func() { close(done); <-ended }
}
