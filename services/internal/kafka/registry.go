package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/sr"

	"penstock.dev/services/internal/conf"
)

// Errors of Registry. Any other error is temporary, so far as the registry can
// tell: it did not answer, answered without sense, or refused this client.
var (
	// ErrRegistryNotFound reports a schema or subject the registry does not
	// know. Asking again helps only after somebody registered it.
	ErrRegistryNotFound error = notFound{}
	// ErrRegistryRefused reports a schema the registry will not take: invalid,
	// or incompatible with what the subject holds.
	ErrRegistryRefused = errors.New("schema registry: refused")
)

// registryTimeout bounds one request to one registry.
const registryTimeout = 5 * time.Second

// notFound says so to packages that do not import this one: schemas/wire asks
// an error for the method.
type notFound struct{}

// Error returns the message.
func (notFound) Error() string { return "schema registry: not found" }

// NotFound returns true.
func (notFound) NotFound() bool { return true }

// A Registry is a client of a Confluent-compatible schema registry. It keeps
// nothing, so callers cache. It is safe for concurrent use.
type Registry struct {
	client *sr.Client
	err    error
}

// RegistryConfig says where a registry is and how to enter.
type RegistryConfig struct {
	URLs     []string // tried in order until one answers; credentials may be part of one
	User     string   // sent with every request; empty: none
	Password conf.Secret
	TLS      TLS // for https URLs
}

// NewRegistry returns a client of the registry at the given URLs. See
// OpenRegistry.
func NewRegistry(urls ...string) *Registry { return OpenRegistry(RegistryConfig{URLs: urls}) }

// OpenRegistry returns a client of a registry. It does not dial.
func OpenRegistry(c RegistryConfig) *Registry {
	var all []string
	for _, u := range c.URLs {
		all = append(all, splitURLs(u)...)
	}
	opts := []sr.ClientOpt{
		sr.URLs(all...),
		sr.HTTPClient(&http.Client{Timeout: registryTimeout, Transport: c.transport()}),
		sr.UserAgent("penstock"),
	}
	if c.User != "" {
		opts = append(opts, sr.BasicAuth(c.User, c.Password.Reveal()))
	}
	client, err := sr.NewClient(opts...)
	return &Registry{client: client, err: err}
}

// secured reports whether any URL is an https one.
func (c RegistryConfig) secured() bool {
	return strings.Contains(strings.ToLower(strings.Join(c.URLs, ",")), "https:")
}

// transport is the default one, but for secured connections, which are this
// package's own and use no proxy.
func (c RegistryConfig) transport() http.RoundTripper {
	std, ok := http.DefaultTransport.(*http.Transport)
	if !ok || c.TLS == (TLS{}) || !c.secured() {
		return http.DefaultTransport
	}
	own := std.Clone()
	own.Proxy = nil
	own.DialTLSContext = c.TLS.dial
	return own
}

// Register makes schema, Avro as JSON text, the newest version of subject
// unless it already has it, and returns the schema's id. It is idempotent.
func (r *Registry) Register(ctx context.Context, subject, schema string) (uint32, error) {
	if r.err != nil {
		return 0, fmt.Errorf("register under %s: %w", subject, r.err)
	}
	id, err := r.client.RegisterSchema(ctx, subject, sr.Schema{Schema: schema}, -1, -1)
	if err != nil {
		return 0, fmt.Errorf("register under %s: %w", subject, registryError(err))
	}
	if id < 0 || id > math.MaxUint32 {
		return 0, fmt.Errorf("register under %s: the registry answered id %d", subject, id)
	}
	return uint32(id), nil
}

// Schema returns the text of the schema with the given id and the subjects that
// hold it, or ErrRegistryNotFound.
func (r *Registry) Schema(ctx context.Context, id uint32) (text string, subjects []string, err error) {
	if r.err != nil {
		return "", nil, fmt.Errorf("schema %d: %w", id, r.err)
	}
	schema, err := r.client.SchemaByID(ctx, int(id))
	if err != nil {
		return "", nil, fmt.Errorf("schema %d: %w", id, registryError(err))
	}
	if schema.Type != sr.TypeAvro {
		return "", nil, fmt.Errorf("%w: schema %d is %s, not Avro", ErrRegistryNotFound, id, schema.Type)
	}
	subjects, err = r.client.SubjectsByID(ctx, int(id))
	if err != nil {
		return "", nil, fmt.Errorf("subjects of schema %d: %w", id, registryError(err))
	}
	return schema.Schema, subjects, nil
}

// registryError wraps err in this package's sentinel, if the registry itself
// gave a verdict. A 404 without its error code is somebody else's page.
func registryError(err error) error {
	var re *sr.ResponseError
	if !errors.As(err, &re) {
		return TLS{}.explain(err)
	}
	switch {
	case re.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("the registry refuses the credentials; see %s and %s: %w", knobRegistryUser, knobRegistryPassword, err)
	case re.ErrorCode >= 40400 && re.ErrorCode <= 40499:
		return fmt.Errorf("%w: %w", ErrRegistryNotFound, err)
	case re.StatusCode == http.StatusConflict, re.ErrorCode >= 42200 && re.ErrorCode <= 42299, re.ErrorCode == http.StatusConflict:
		return fmt.Errorf("%w: %w", ErrRegistryRefused, err)
	default:
		return fmt.Errorf("status %d, code %d: %w", re.StatusCode, re.ErrorCode, err)
	}
}
