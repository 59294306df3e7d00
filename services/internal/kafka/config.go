package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"penstock.dev/services/internal/conf"
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
	TLS *TLS
	// SASL says who the client is to the brokers. The zero SASL is nobody.
	SASL SASL
	// RegistryUser and RegistryPassword are sent to the registry. Empty: none.
	RegistryUser     string
	RegistryPassword conf.Secret
	// RegistryTLS is used for registries at https URLs.
	RegistryTLS TLS
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
		if !isURL(u) {
			faults = append(faults, fmt.Errorf("schema registry: %q is not an http(s) URL", hidePassword(u)))
		}
	}
	if c.TLS != nil {
		faults = append(faults, c.TLS.Validate())
	}
	faults = append(faults, c.SASL.Validate(), c.RegistryTLS.Validate())
	if c.Linger < 0 || c.DeliveryTimeout < 0 || c.MaxBufferedRecords < 0 || c.MaxBufferedBytes < 0 {
		faults = append(faults, errors.New("linger, delivery timeout and buffer bounds: must not be negative"))
	}
	return errors.Join(faults...)
}

// isURL reports whether u can be a registry's.
func isURL(u string) bool {
	p, err := url.Parse(u)
	return err == nil && (p.Scheme == "http" || p.Scheme == "https") && p.Host != ""
}

// hidePassword is a URL, or what should have been one, for an error message.
func hidePassword(u string) string {
	if i := strings.LastIndexByte(u, '@'); i >= 0 {
		return "***" + u[i:]
	}
	return u
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
func (c Config) base(log *clientLog, d *door) []kgo.Opt {
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
		kgo.Dialer(d.open),
		kgo.DisableClientMetrics(), // they are on /metrics; pushing them also delays Close while brokers are away
	}
	if m := c.SASL.mechanism(); m != nil {
		opts = append(opts, kgo.SASL(m))
	}
	return opts
}

// dial opens one connection to a broker.
func (c Config) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if c.TLS != nil {
		return c.TLS.dial(ctx, network, addr)
	}
	return (&net.Dialer{}).DialContext(ctx, network, addr)
}

// registry is the configuration of the registry's client.
func (c Config) registry() RegistryConfig {
	return RegistryConfig{URLs: splitURLs(c.SchemaRegistry), User: c.RegistryUser, Password: c.RegistryPassword, TLS: c.RegistryTLS}
}

// warnings are what is configured and hardly meant.
func (c Config) warnings() (said []string) {
	if c.SASL.Mechanism == SASLPlain && c.TLS == nil {
		said = append(said, "the password for Kafka is sent readable: "+knobSASL.String()+" is PLAIN and "+knobTLS.String()+" off")
	}
	if c.RegistryUser != "" && strings.Contains(c.SchemaRegistry, "http://") {
		said = append(said, "the password for the schema registry is sent readable: "+knobRegistry.String()+" is not https")
	}
	return said
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
