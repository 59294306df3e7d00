package server

import (
	"context"
	_ "embed" // the logging
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// readySearch bounds the wait for a search server, which a busy machine can
// take a minute to start.
const readySearch = 3 * time.Minute

// searchLogging sends everything to stdout.
//
//go:embed search-log4j2.properties
var searchLogging string

const searchLoggingFile = "log4j2.properties"

// A searchHome is where one Elasticsearch or OpenSearch lives.
type searchHome struct {
	dir, config, data, logs, tmp string
	port, transport              int
	as                           *identity // nobody's when this process is root
}

// newSearchHome makes the directories of a search server, which must be able to
// read software too. Elasticsearch refuses to be root; so neither is.
func newSearchHome(ctx context.Context, dir string, port, transport int, run Run, software ...string) (searchHome, error) {
	port, err1 := orFree(ctx, port, dir, run, addrOf)
	transport, err2 := orFree(ctx, transport, dir, Run{}, nil)
	dir, err3 := filepath.Abs(dir)
	if err := errors.Join(err1, err2, err3); err != nil {
		return searchHome{}, err
	}
	h := searchHome{
		dir: dir, port: port, transport: transport,
		config: filepath.Join(dir, "config"), data: filepath.Join(dir, "data"),
		logs: filepath.Join(dir, "logs"), tmp: filepath.Join(dir, "tmp"),
	}
	var errs []error
	if os.Geteuid() == 0 {
		const nobody = 65534
		h.as = &identity{uid: nobody, gid: nobody}
	}
	for _, path := range []string{h.config, h.data, h.logs, h.tmp} {
		errs = append(errs, os.MkdirAll(path, 0o755))
		if h.as != nil {
			errs = append(errs, os.Chown(path, int(h.as.uid), int(h.as.gid)))
		}
	}
	if h.as != nil {
		h.as.passThrough(append(software, dir)...)
	}
	errs = append(errs, os.WriteFile(filepath.Join(h.config, searchLoggingFile), []byte(searchLogging), 0o644))
	return h, errors.Join(errs...)
}

// settings are common to Elasticsearch and OpenSearch.
func (h searchHome) settings(home string) []string {
	return []string{
		"path.home=" + home, "path.data=" + h.data, "path.logs=" + h.logs,
		"cluster.name=penstock", "node.name=local", "discovery.type=single-node",
		"network.host=127.0.0.1", "http.port=" + strconv.Itoa(h.port), "transport.port=" + strconv.Itoa(h.transport),
		// On a nearly full disk it would refuse to make indices.
		"cluster.routing.allocation.disk.threshold_enabled=false",
	}
}

// java returns the arguments of Java that have to do with the machine.
func (h searchHome) java(heapMB int) []string {
	if heapMB == 0 {
		heapMB = 512
	}
	return []string{
		fmt.Sprintf("-Xms%dm", heapMB/2), fmt.Sprintf("-Xmx%dm", heapMB), fmt.Sprintf("-XX:MaxDirectMemorySize=%dm", heapMB/2),
		"-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError",
		"-XX:ErrorFile=" + filepath.Join(h.logs, "hs_err_pid%p.log"),
		// Every jar has been compared with its digest, so its code need not be verified: a sixth of the start.
		"-XX:+IgnoreUnrecognizedVMOptions", "-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote",
		"-Djava.awt.headless=true", "-Djava.io.tmpdir=" + h.tmp, "-Dlog4j2.disable.jmx=true",
	}
}

func (h searchHome) spec(name, path string, args []string, run Run) Spec {
	if run.Within == 0 {
		run.Within = readySearch
	}
	addr := loopback(h.port)
	return Spec{
		Name: name, Path: path, Args: args, Dir: h.dir, Addr: addr, URL: "http://" + addr,
		Env:        []string{"HOME=" + h.dir, "ES_TMPDIR=" + h.tmp, "LIBFFI_TMPDIR=" + h.tmp},
		Ready:      Answers200("http://" + addr + "/_cluster/health?wait_for_status=yellow&timeout=1s"),
		StopWithin: 2 * defaultStop,
		As:         h.as, Run: run,
	}
}
