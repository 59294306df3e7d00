package esindex

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elastic/elastic-transport-go/v8/elastictransport"
	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/services/internal/conf"
	"penstock.dev/services/usage-indexer/usagedoc"
)

// Config says where the store is and how documents are kept in it.
type Config struct {
	URLs     []string    // of its nodes, used in turn; at least one
	User     string      // empty: none
	Password conf.Secret // of that user
	APIKey   conf.Secret // base64 of id:key, instead of a user
	CAFile   string      // PEM of who may sign its certificates; empty: whom the system trusts
	Flavor   Flavor      // what must answer there; empty: either

	Prefix    string        // of index names, and the name of the template
	Retention int           // days; 0 keeps for ever
	Replicas  int           // of an index made from now on
	Refresh   time.Duration // how soon documents are found, of an index made from now on

	BatchDocs  int           // most documents of one request, at least 1
	BatchBytes int           // most bytes of one request, but for a single document
	Timeout    time.Duration // of one request; what is applied after it is answered 409 later

	Transport http.RoundTripper // nil: the network
}

// ErrConfig reports a store that cannot be asked as configured.
var ErrConfig = errors.New("invalid configuration of the store")

// A Store writes documents. It is safe for concurrent use.
type Store struct {
	cfg     Config
	client  *elastictransport.Client
	log     *slog.Logger
	metrics *metrics
	now     func() time.Time

	names   sync.Map     // usagedoc.Day → its index's name
	ceiling atomic.Int64 // bytes of one request that the store is known to take; at most BatchBytes
	health  health

	made   sync.Map   // usagedoc.Day → true: its index is there, or was
	making sync.Mutex // held while the template or an index is made
	placed bool       // the template is there, or was
}

// New returns a store. It does not ask it anything. The clock is for which days
// are kept.
func New(cfg Config, log *slog.Logger, registerer prometheus.Registerer, now func() time.Time) (*Store, error) {
	next := cfg.Transport
	if next == nil {
		network, err := network(cfg)
		if err != nil {
			return nil, err
		}
		next = network
	}
	s := &Store{cfg: cfg, log: log, now: now}
	s.ceiling.Store(int64(cfg.BatchBytes))
	s.health.now = now
	var err error
	if s.metrics, err = newMetrics(registerer, &s.health); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	if s.client, err = newClient(cfg, &compatible{flavor: cfg.Flavor, next: next}); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return s, nil
}

// newClient does without the client's own package: that brings a thousand others
// along, which take minutes to compile, for types that are not used here.
func newClient(cfg Config, transport http.RoundTripper) (*elastictransport.Client, error) {
	urls := make([]*url.URL, len(cfg.URLs))
	for i, text := range cfg.URLs {
		u, err := url.Parse(strings.TrimRight(text, "/"))
		if err != nil {
			return nil, err
		}
		urls[i] = u
	}
	options := []elastictransport.Option{
		elastictransport.WithURLs(urls...), elastictransport.WithTransport(transport),
		elastictransport.WithDisableRetry(), // what is safe to repeat is known here
	}
	if cfg.User != "" {
		options = append(options, elastictransport.WithBasicAuth(cfg.User, cfg.Password.Reveal()))
	}
	if key := cfg.APIKey.Reveal(); key != "" {
		options = append(options, elastictransport.WithAPIKey(key))
	}
	return elastictransport.NewClient(options...)
}

// network returns a transport of its own: its connections are few and kept.
func network(cfg Config) (*http.Transport, error) {
	transport, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, fmt.Errorf("%w: the default transport was replaced", ErrConfig)
	}
	transport = transport.Clone()
	transport.MaxIdleConnsPerHost = 16
	if cfg.CAFile == "" {
		return transport, nil
	}
	pem, err := os.ReadFile(cfg.CAFile)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%w: %s holds no certificate", ErrConfig, cfg.CAFile)
	}
	transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	return transport, nil
}

// indexName is the name of a day's index, made once.
func (s *Store) indexName(d usagedoc.Day) string {
	if name, ok := s.names.Load(d); ok {
		return name.(string) //nolint:forcetypeassert // nothing else is stored
	}
	name := usagedoc.IndexName(s.cfg.Prefix, d)
	s.names.Store(d, name)
	return name
}
