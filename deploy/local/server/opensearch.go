package server

import (
	"context"
	"crypto/sha256"
	_ "embed" // the starter
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// OpenSearchOptions configures StartOpenSearch.
type OpenSearchOptions struct {
	Port          int      // 0 picks a free one
	TransportPort int      // 0 picks a free one
	HeapMB        int      // 0 means 512
	Settings      []string // further settings, name=value, last
	Run
}

// StartOpenSearch starts one node of OpenSearch 2.19.6 on 127.0.0.1, without
// security, set up for a small machine; it does not watch how full the disk is.
// The server's URL takes REST calls.
func StartOpenSearch(ctx context.Context, dir string, o OpenSearchOptions) (*Process, error) {
	spec, err := openSearchSpec(ctx, dir, o)
	if err != nil {
		return nil, fmt.Errorf("opensearch: %w", err)
	}
	return Start(ctx, spec)
}

func openSearchSpec(ctx context.Context, dir string, o OpenSearchOptions) (Spec, error) {
	if err := Need(ctx, o.Run, Java); err != nil {
		return Spec{}, err
	}
	java, err := javaPath()
	if err != nil {
		return Spec{}, err
	}
	lib, err := jars(ctx, openSearchJars(), o.Run)
	if err != nil {
		return Spec{}, err
	}
	classPath, err := jarList(lib)
	if err != nil {
		return Spec{}, err
	}
	starter, err := openSearchStarter(ctx, java, lib, classPath, o.Run)
	if err != nil {
		return Spec{}, err
	}
	at, err := newSearchHome(ctx, dir, o.Port, o.TransportPort, o.Run, lib, starter)
	if err != nil {
		return Spec{}, err
	}
	args := append(at.java(o.HeapMB),
		"-Dlog4j2.configurationFile="+filepath.Join(at.config, searchLoggingFile),
		"-cp", starter+string(os.PathListSeparator)+classPath, "OpenSearchNode")
	args = append(args, at.settings(at.dir)...)
	return at.spec("opensearch", java, append(args, o.Settings...), o.Run), nil
}

//go:embed OpenSearchNode.java
var openSearchSource string

// openSearchStarter returns the directory with the compiled starter, from the
// user's cache. The compiler is a module of Java's, which Debian's smallest
// runtime has too; javac itself is in no such package.
func openSearchStarter(ctx context.Context, java, lib, classPath string, run Run) (string, error) {
	sum := sha256.Sum256([]byte(openSearchSource))
	classes := lib + ".starter-" + hex.EncodeToString(sum[:6])
	unlock, err := lock(ctx, lib+".lock", run.say)
	if err != nil {
		return "", err
	}
	defer unlock()
	if fileExists(filepath.Join(classes, "OpenSearchNode.class")) {
		return classes, nil
	}
	building := classes + ".partial"
	source := filepath.Join(building, "OpenSearchNode.java")
	err = errors.Join(os.RemoveAll(building), os.MkdirAll(building, 0o755), os.WriteFile(source, []byte(openSearchSource), 0o644))
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, java, "-XX:TieredStopAtLevel=1", "-m", "jdk.compiler/com.sun.tools.javac.Main",
		"--release", "17", "-proc:none", "-cp", classPath, "-d", building, source).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("compiling the starter: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return classes, os.Rename(building, classes)
}
