package server

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

// ElasticsearchOptions configures StartElasticsearch.
type ElasticsearchOptions struct {
	Port          int      // 0 picks a free one
	TransportPort int      // 0 picks a free one
	HeapMB        int      // 0 means 512
	Settings      []string // further settings, name=value, last
	Run
}

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
	at, err := newSearchHome(ctx, dir, o.Port, o.TransportPort, o.Run, home)
	if err != nil {
		return Spec{}, err
	}
	spec := at.spec("elasticsearch", java, append(at.java(o.HeapMB), elasticsearchArgs(home)...), o.Run)
	spec.Stdin = launcherSays(append(at.settings(home), o.Settings...), at.config, at.logs)
	return spec, nil
}

// elasticsearchArgs are those that bin/elasticsearch of this version gives to
// the server, but for a heap that is touched when needed, the quick compiler, and
// no log of the garbage collector.
func elasticsearchArgs(home string) []string {
	lib := filepath.Join(home, "lib")
	return []string{
		"-Xss1m", "-Des.path.home=" + home, "-Des.distribution.type=zip", "-Des.java.type=ES_JAVA_HOME",
		"-Des.networkaddress.cache.ttl=60", "-Des.networkaddress.cache.negative.ttl=10",
		"-Dfile.encoding=UTF-8", "-Djna.nosys=true", "-XX:-OmitStackTraceInFastThrow",
		"-Dio.netty.noUnsafe=true", "-Dio.netty.noKeySetOptimization=true", "-Dio.netty.recycler.maxCapacityPerThread=0",
		"-Dlog4j.shutdownHookEnabled=false", "-Dlog4j2.formatMsgNoLookups=true",
		"-Dorg.apache.lucene.store.MMapDirectory.sharedArenaMaxPermits=1",
		// How the server confines its modules, which is not optional.
		"-XX:+EnableDynamicAgentLoading", "-Djdk.attach.allowAttachSelf=true",
		"--patch-module=java.base=" + filepath.Join(lib, "entitlement-bridge", "elasticsearch-entitlement-bridge-8.19.21.jar"),
		"--add-exports=java.base/org.elasticsearch.entitlement.bridge=" +
			"org.elasticsearch.entitlement,java.logging,java.net.http,java.naming,jdk.net,jdk.zipfs,jdk.management.agent",
		"--module-path", lib, "--add-modules=jdk.net,jdk.management.agent,ALL-MODULE-PATH",
		"-m", "org.elasticsearch.server/org.elasticsearch.bootstrap.Elasticsearch",
	}
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
