package kafka

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// metadataMinAge is how soon a client may ask again who leads a partition. The
// library's 5 s made three refused writes cost 15 s; 100 ms makes them 0.3 s.
const metadataMinAge = 100 * time.Millisecond

// metadataMaxAge is how late a client notices a partition that was added.
const metadataMaxAge = 30 * time.Second

const (
	defaultClientID           = "penstock"
	defaultMaxBufferedRecords = 50_000
	defaultMaxBufferedBytes   = 64 << 20
)

// Config says where Kafka is and how much of it a client may hold in memory.
// Zero values are usable except Brokers.
type Config struct {
	// Brokers are the addresses to start from, each host:port. At least one.
	Brokers []string
	// SchemaRegistry is the URL of a Confluent-compatible registry, or several
	// separated by commas, tried in order. Empty: the client has no registry.
	SchemaRegistry string
	// ClientID names the process in the brokers' logs and quotas. Empty means
	// "penstock".
	ClientID string
	// TLS is used for every broker connection. Nil means plain text.
	TLS *tls.Config
	// Linger is how long a record waits for company before it is sent. Zero
	// sends at once.
	Linger time.Duration
	// MaxBufferedRecords bounds the records accepted and not yet acknowledged.
	// Zero means 50,000.
	MaxBufferedRecords int
	// MaxBufferedBytes bounds the bytes of the same. Zero means 64 MiB.
	MaxBufferedBytes int
	// DeliveryTimeout fails a record that could not be stored for so long, and
	// with it what is buffered behind it in its partition. Zero waits for ever.
	DeliveryTimeout time.Duration
	// CancelInFlight lets DeliveryTimeout and the end of a record's context
	// also give up a record whose request may be under way. It may be stored
	// all the same, and then once more if it is produced again. For producers
	// to whom a late record is worse than a repeated one.
	CancelInFlight bool
}

// Validate returns every fault of the configuration at once, or nil.
func (c Config) Validate() error {
	var faults []error
	if len(c.Brokers) == 0 {
		faults = append(faults, errors.New("brokers: none given"))
	}
	for _, b := range c.Brokers {
		if strings.TrimSpace(b) == "" {
			faults = append(faults, errors.New("brokers: one is empty"))
		}
	}
	for _, u := range splitURLs(c.SchemaRegistry) {
		if p, err := url.Parse(u); err != nil || p.Scheme != "http" && p.Scheme != "https" || p.Host == "" {
			faults = append(faults, fmt.Errorf("schema registry: %q is not an http(s) URL", u))
		}
	}
	if c.Linger < 0 || c.DeliveryTimeout < 0 || c.MaxBufferedRecords < 0 || c.MaxBufferedBytes < 0 {
		faults = append(faults, errors.New("linger, delivery timeout and buffer bounds: must not be negative"))
	}
	return errors.Join(faults...)
}

// splitURLs splits a comma-separated list and drops what is empty.
func splitURLs(list string) []string {
	var urls []string
	for u := range strings.SplitSeq(list, ",") {
		if u = strings.TrimSpace(u); u != "" {
			urls = append(urls, u)
		}
	}
	return urls
}

// base returns the options that every connection of this package shares.
func (c Config) base(log *clientLog) []kgo.Opt {
	id := c.ClientID
	if id == "" {
		id = defaultClientID
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.ClientID(id),
		kgo.SoftwareNameAndVersion("penstock", "1"),
		kgo.MetadataMinAge(metadataMinAge),
		kgo.MetadataMaxAge(metadataMaxAge),
		kgo.WithLogger(log),
		kgo.DisableClientMetrics(), // they are on /metrics; pushing them also delays Close while brokers are away
	}
	if c.TLS != nil {
		opts = append(opts, kgo.DialTLSConfig(c.TLS))
	}
	return opts
}

// producing returns the options of the one producer.
func (c Config) producing() []kgo.Opt {
	records, bytes := c.MaxBufferedRecords, c.MaxBufferedBytes
	if records == 0 {
		records = defaultMaxBufferedRecords
	}
	if bytes == 0 {
		bytes = defaultMaxBufferedBytes
	}
	opts := []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(c.Linger),
		kgo.MaxBufferedRecords(records),
		kgo.MaxBufferedBytes(bytes),
		kgo.RecordPartitioner(newPartitioner()),
	}
	if c.DeliveryTimeout > 0 {
		opts = append(opts, kgo.RecordDeliveryTimeout(c.DeliveryTimeout))
	}
	if c.CancelInFlight {
		opts = append(opts, kgo.AllowIdempotentProduceCancellation())
	}
	return opts
}
