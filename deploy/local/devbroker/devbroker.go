// Package devbroker is Kafka for one machine: a broker that speaks the real
// protocol (franz-go's kfake) on a fixed port with its data on disk, and a
// schema registry beside it. README.md says what it is not.
package devbroker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"penstock.dev/deploy/local/devbroker/registry"
)

// startTimeout bounds reading the schemas back; shutdownTimeout the requests to
// the registry that are under way at the end.
const (
	startTimeout    = 30 * time.Second
	shutdownTimeout = 5 * time.Second
)

// Config says where a broker listens and what it keeps.
type Config struct {
	// Kafka is where clients connect, 127.0.0.1:port. Port 0 picks a free one.
	// The broker has no passwords, so it serves this machine only.
	Kafka string
	// Registry is where the schema registry listens, likewise.
	Registry string
	// DataDir keeps records, groups, topics and schemas. It is created. Empty
	// keeps everything in memory.
	DataDir string
	// Sync forces every batch to disk before it is acknowledged. Without it a
	// killed broker loses nothing, a machine that loses power may.
	Sync bool
	// CompactEvery is how often compacted topics are compacted and expired
	// records removed. Zero leaves it to Compact.
	CompactEvery time.Duration
	// Level is the compatibility of subjects without a level of their own.
	// Empty means FULL_TRANSITIVE.
	Level registry.Level
}

// A Broker is a running broker and registry.
type Broker struct {
	cfg      Config
	log      *slog.Logger
	lock     *os.File // keeps a second broker off the data
	cluster  *kfake.Cluster
	schemas  *registry.Registry
	server   *http.Server
	listener net.Listener
	stop     context.CancelFunc
	loops    sync.WaitGroup
	cleaning sync.Mutex
}

// Start runs a broker until Close. It returns when both ports answer.
func Start(ctx context.Context, cfg Config, log *slog.Logger) (*Broker, error) {
	b := &Broker{cfg: cfg, log: log}
	if err := b.start(ctx); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

func (b *Broker) start(ctx context.Context) error {
	port, err := loopbackPort(b.cfg.Kafka)
	if err != nil {
		return fmt.Errorf("kafka address: %w", err)
	}
	if _, err := loopbackPort(b.cfg.Registry); err != nil {
		return fmt.Errorf("registry address: %w", err)
	}
	if b.cfg.DataDir != "" {
		if err := b.openData(); err != nil {
			return fmt.Errorf("data directory: %w", err)
		}
	}
	if b.cluster, err = kfake.NewCluster(b.options(port)...); err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	sctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	b.schemas, err = registry.Open(sctx, registry.Config{Brokers: b.Brokers(), Level: b.cfg.Level}, b.log)
	if err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	var lc net.ListenConfig
	if b.listener, err = lc.Listen(ctx, "tcp", b.cfg.Registry); err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	b.serve(context.WithoutCancel(ctx))
	return nil
}

func (b *Broker) options(port int) []kfake.Opt {
	opts := []kfake.Opt{
		kfake.NumBrokers(1),
		kfake.Ports(port),
		kfake.ClusterID("penstock-dev"),
		kfake.DefaultNumPartitions(1),
		kfake.WithLogger(clusterLog{b.log}),
		kfake.MaxVersions(versions()),
		// The broker's own compaction is not safe against a kill, see clean.go.
		kfake.BrokerConfigs(map[string]string{"log.cleaner.backoff.ms": strconv.FormatInt(neverMillis, 10)}),
	}
	if b.cfg.DataDir != "" {
		opts = append(opts, kfake.DataDir(b.logDir()))
	}
	if b.cfg.Sync {
		opts = append(opts, kfake.SyncWrites())
	}
	return opts
}

// versions are all that the broker knows, but for two answers over which Java's
// client throws: to CreateTopics from version 5 on (settings of no source), and
// to DescribeTopicPartitions (no list of eligible leaders), for which it then
// asks by Metadata.
func versions() *kversion.Versions {
	v := kversion.Stable()
	v.SetMaxKeyVersion(int16(kmsg.CreateTopics), 4)
	v.SetMaxKeyVersion(int16(kmsg.DescribeTopicPartitions), -1)
	return v
}

// openData takes the data directory for this process alone and mends what a
// kill in the middle of a compaction left.
func (b *Broker) openData() error {
	if err := os.MkdirAll(b.logDir(), 0o750); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(b.cfg.DataDir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	b.lock = f
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("%s is used by another broker: %w", b.cfg.DataDir, err)
	}
	restored, err := restore(b.logDir(), b.safeDir())
	if restored > 0 {
		b.log.Warn("compaction was interrupted; went back to before it", "partitions", restored)
	}
	return errors.Join(err, forgetFetchSessions(b.logDir()))
}

func (b *Broker) logDir() string  { return filepath.Join(b.cfg.DataDir, "kafka") }
func (b *Broker) safeDir() string { return filepath.Join(b.cfg.DataDir, "compacting") }

// serve runs the registry's server and the cleaner until Close.
func (b *Broker) serve(ctx context.Context) {
	b.server = &http.Server{Handler: b.schemas.Handler(), ReadHeaderTimeout: shutdownTimeout}
	b.loops.Go(func() {
		if err := b.server.Serve(b.listener); !errors.Is(err, http.ErrServerClosed) {
			b.log.Error("registry stopped serving", "error", err.Error())
		}
	})
	ctx, b.stop = context.WithCancel(ctx)
	if b.cfg.CompactEvery > 0 {
		b.loops.Go(func() { b.clean(ctx) })
	}
}

// Brokers returns the address that Kafka clients start from.
func (b *Broker) Brokers() []string { return b.cluster.ListenAddrs() }

// RegistryURL returns the address of the schema registry, without a slash at
// the end.
func (b *Broker) RegistryURL() string { return "http://" + b.listener.Addr().String() }

// Cluster returns the broker itself, for tests that make it fail.
func (b *Broker) Cluster() *kfake.Cluster { return b.cluster }

// Close stops serving and puts everything on disk. It may be called on a broker
// whose start failed.
func (b *Broker) Close() {
	if b.stop != nil {
		b.stop()
	}
	if b.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout) // Close ends by itself, whatever its caller's context
		if err := b.server.Shutdown(ctx); err != nil {
			b.log.Warn("requests to the registry were cut", "error", err.Error())
			_ = b.server.Close()
		}
		cancel()
	}
	b.loops.Wait()
	if b.listener != nil && b.server == nil {
		_ = b.listener.Close()
	}
	if b.schemas != nil {
		b.schemas.Close()
	}
	if b.cluster != nil {
		b.cluster.Close()
	}
	if b.lock != nil {
		_ = b.lock.Close() // and with it the lock
	}
}

// loopbackPort checks that addr is a port of 127.0.0.1.
func loopbackPort(addr string) (int, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("port %q: %w", port, err)
	}
	if host != "127.0.0.1" && host != "localhost" {
		return 0, fmt.Errorf("%q: the development broker has no passwords and listens on 127.0.0.1 only", host)
	}
	return int(n), nil
}

// clusterLog passes the broker's complaints on.
type clusterLog struct{ log *slog.Logger }

// Logf writes one message, unless it is about ordinary requests.
func (l clusterLog) Logf(level kfake.LogLevel, format string, args ...any) {
	switch level {
	case kfake.LogLevelError:
		l.log.Error("broker", "event", fmt.Sprintf(format, args...))
	case kfake.LogLevelWarn:
		l.log.Warn("broker", "event", fmt.Sprintf(format, args...))
	case kfake.LogLevelNone, kfake.LogLevelInfo, kfake.LogLevelDebug:
		l.log.Debug("broker", "event", fmt.Sprintf(format, args...))
	}
}
