package server

import (
	"context"
	_ "embed" // the logging
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// ElasticsearchOptions configures StartElasticsearch.
type ElasticsearchOptions struct {
	Port          int      // 0 picks a free one
	TransportPort int      // 0 picks a free one
	HeapMB        int      // 0 means 512
	Settings      []string // further settings, name=value, last
	Run
}

// readySearch bounds the wait for a search server, which a busy machine can
// take a minute to start.
const readySearch = 3 * time.Minute

// StartElasticsearch starts one node of Elasticsearch 8.19.21 on 127.0.0.1: the
// server core that Elastic publishes for integration tests, without security
// and without the extensions that need a licence. It is set up for a small
// machine and does not watch how full the disk is. The server's URL takes REST
// calls; GET of the URL itself is answered 405.
func StartElasticsearch(ctx context.Context, dir string, o ElasticsearchOptions) (*Process, error) {
	spec, err := elasticsearchSpec(ctx, dir, o)
	if err != nil {
		return nil, fmt.Errorf("elasticsearch: %w", err)
	}
	return Start(ctx, spec)
}

func elasticsearchSpec(ctx context.Context, dir string, o ElasticsearchOptions) (Spec, error) {
	if err := Need(ctx, o.Run, Java); err != nil {
		return Spec{}, err
	}
	java, err := javaPath()
	if err != nil {
		return Spec{}, err
	}
	home, err := unpacked(ctx, elasticsearchZip(), o.Run)
	if err != nil {
		return Spec{}, err
	}
	port, err1 := orFree(ctx, o.Port, dir, o.Run, addrOf)
	transport, err2 := orFree(ctx, o.TransportPort, dir, Run{}, nil)
	dir, err3 := filepath.Abs(dir)
	if err := errors.Join(err1, err2, err3); err != nil {
		return Spec{}, err
	}
	as, err := searchIdentity(dir, home)
	if err != nil {
		return Spec{}, err
	}
	config := filepath.Join(dir, "config")
	if err := searchDirs(dir, as); err != nil {
		return Spec{}, err
	}
	if err := os.WriteFile(filepath.Join(config, "log4j2.properties"), []byte(searchLogging), 0o644); err != nil {
		return Spec{}, err
	}
	if o.Within == 0 {
		o.Within = readySearch
	}
	addr := loopback(port)
	settings := append(searchSettings(dir, home, port, transport), "xpack.security.enabled=false")
	return Spec{
		Name: "elasticsearch", Path: java, Args: elasticsearchArgs(dir, home, o.HeapMB), Dir: dir,
		Env:   []string{"HOME=" + dir, "ES_TMPDIR=" + filepath.Join(dir, "tmp"), "LIBFFI_TMPDIR=" + filepath.Join(dir, "tmp")},
		Stdin: launcherSays(append(settings, o.Settings...), config, filepath.Join(dir, "logs")),
		Addr:  addr, URL: "http://" + addr,
		Ready:      Answers200("http://" + addr + "/_cluster/health?wait_for_status=yellow&timeout=1s"),
		StopWithin: 2 * defaultStop,
		As:         as, Run: o.Run,
	}, nil
}

// searchLogging sends everything to stdout.
//
//go:embed search-log4j2.properties
var searchLogging string

// searchSettings are common to Elasticsearch and OpenSearch.
func searchSettings(dir, home string, port, transport int) []string {
	return []string{
		"path.home=" + home, "path.data=" + filepath.Join(dir, "data"), "path.logs=" + filepath.Join(dir, "logs"),
		"cluster.name=penstock", "node.name=local", "discovery.type=single-node",
		"network.host=127.0.0.1", "http.port=" + strconv.Itoa(port), "transport.port=" + strconv.Itoa(transport),
		// On a nearly full disk it would refuse to make indices.
		"cluster.routing.allocation.disk.threshold_enabled=false",
	}
}

// elasticsearchArgs are those that bin/elasticsearch of this version gives to
// the server, but for a heap that is touched when needed, the quick compiler, and
// no log of the garbage collector.
func elasticsearchArgs(dir, home string, heapMB int) []string {
	lib := filepath.Join(home, "lib")
	return append(searchArgs(dir, heapMB),
		"-Xss1m", "-Des.path.home="+home, "-Des.distribution.type=zip", "-Des.java.type=ES_JAVA_HOME",
		"-Des.networkaddress.cache.ttl=60", "-Des.networkaddress.cache.negative.ttl=10",
		"-Dfile.encoding=UTF-8", "-Djna.nosys=true", "-XX:-OmitStackTraceInFastThrow",
		"-Dio.netty.noUnsafe=true", "-Dio.netty.noKeySetOptimization=true", "-Dio.netty.recycler.maxCapacityPerThread=0",
		"-Dlog4j.shutdownHookEnabled=false", "-Dlog4j2.formatMsgNoLookups=true",
		"-Dorg.apache.lucene.store.MMapDirectory.sharedArenaMaxPermits=1",
		// How the server confines its modules, which is not optional.
		"-XX:+EnableDynamicAgentLoading", "-Djdk.attach.allowAttachSelf=true",
		"--patch-module=java.base="+filepath.Join(lib, "entitlement-bridge", "elasticsearch-entitlement-bridge-8.19.21.jar"),
		"--add-exports=java.base/org.elasticsearch.entitlement.bridge="+
			"org.elasticsearch.entitlement,java.logging,java.net.http,java.naming,jdk.net,jdk.zipfs,jdk.management.agent",
		"--module-path", lib, "--add-modules=jdk.net,jdk.management.agent,ALL-MODULE-PATH",
		"-m", "org.elasticsearch.server/org.elasticsearch.bootstrap.Elasticsearch")
}

// searchArgs are of the machine that a search server runs on.
func searchArgs(dir string, heapMB int) []string {
	if heapMB == 0 {
		heapMB = 512
	}
	return []string{
		"-Xms64m", fmt.Sprintf("-Xmx%dm", heapMB), fmt.Sprintf("-XX:MaxDirectMemorySize=%dm", heapMB/2),
		"-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError",
		"-XX:ErrorFile=" + filepath.Join(dir, "logs", "hs_err_pid%p.log"),
		"-Djava.awt.headless=true", "-Djava.io.tmpdir=" + filepath.Join(dir, "tmp"), "-Dlog4j2.disable.jmx=true",
	}
}

// searchDirs makes the directories of a search server and gives them to its user.
func searchDirs(dir string, as *identity) error {
	var errs []error
	for _, name := range []string{"config", "data", "logs", "tmp"} {
		path := filepath.Join(dir, name)
		errs = append(errs, os.MkdirAll(path, 0o755))
		if as != nil {
			errs = append(errs, os.Chown(path, int(as.uid), int(as.gid)))
		}
	}
	return errors.Join(errs...)
}

// searchIdentity is nobody's when this process is root, which Elasticsearch
// refuses to be, with the capability to pass through root's home if dir or home
// lie there.
func searchIdentity(dir, home string) (*identity, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // no other identity is an answer, not a failure
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	const nobody = 65534
	as := &identity{uid: nobody, gid: nobody}
	as.passThrough(dir, home)
	return as, nil
}

// launcherSays is what Elasticsearch's own launcher writes to the server's
// standard input: its settings, in the encoding of this very version. Without
// the launcher, which is a Java machine of its own, the server starts sooner and
// is the process that signals go to.
func launcherSays(settings []string, config, logs string) []byte {
	var b strings.Builder
	word := func(s string) { // of ASCII: as many characters as bytes
		n := len(s)
		for ; n > 0x7f; n >>= 7 {
			b.WriteByte(byte(n) | 0x80)
		}
		b.WriteByte(byte(n))
		b.WriteString(s)
	}
	const no, text = 0, 0
	b.Write([]byte{no, no, no}) // as a daemon, quiet, pid file
	word("org.elasticsearch.common.settings.KeyStoreWrapper")
	b.Write([]byte{0, 0, 0, 7})    // format of the key store
	b.Write([]byte{no, no, 0, no}) // password, data, entries, closed
	last := map[string]string{}
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		last[name] = value
	}
	b.WriteByte(byte(len(last))) // below 128
	for name, value := range last {
		word(name)
		b.WriteByte(text)
		word(value)
	}
	word(config)
	word(logs)
	return []byte(b.String())
}
