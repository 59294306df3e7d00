package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A Record is one message. For Produce, Partition, Offset and Timestamp are
// ignored: the key chooses the partition and the broker the rest.
type Record struct {
	Topic     string
	Key       []byte
	Value     []byte // nil is a tombstone; empty is a value
	Headers   []Header
	Partition int32
	Offset    int64
	Timestamp time.Time
}

// A Header is a name and bytes beside the value. Names may repeat.
type Header struct {
	Key   string
	Value []byte
}

// A Client produces to and reads from one Kafka cluster. It is safe for
// concurrent use.
type Client struct {
	cfg      Config
	log      *slog.Logger
	kgoLog   *clientLog
	metrics  *metrics
	door     *door
	producer *kgo.Client
	admin    *kadm.Client
	registry *Registry

	mu      sync.Mutex
	closed  bool
	readers map[any]context.CancelCauseFunc // by *reader or *member
	purges  sync.WaitGroup
	purging map[string]bool
}

// New returns a client of the cluster at cfg.Brokers. It checks cfg and does
// not wait for a broker. Metrics go to the given registerer, nil for none.
func New(cfg Config, log *slog.Logger, registerer prometheus.Registerer) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m, err := newMetrics(registerer)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	d := newDoor(cfg)
	c := &Client{
		cfg: cfg, log: log, kgoLog: newClientLog(log, d), metrics: m, door: d,
		readers: make(map[any]context.CancelCauseFunc),
		purging: make(map[string]bool),
	}
	for _, w := range cfg.warnings() {
		log.Warn("configuration", "remark", w)
	}
	if r := cfg.registry(); len(r.URLs) > 0 {
		c.registry = OpenRegistry(r)
	}
	if c.producer, err = c.connect("producer", cfg.producing()...); err != nil {
		return nil, err
	}
	c.admin = kadm.NewClient(c.producer)
	return c, nil
}

// connect opens one more connection pool to the cluster. role is its constant
// metric label, so it must come from code, never from data.
func (c *Client) connect(role string, opts ...kgo.Opt) (*kgo.Client, error) {
	hook := c.metrics.client(role)
	cl, err := kgo.NewClient(append(append(c.cfg.base(c.kgoLog, c.door), hook.opt()), opts...)...)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	hook.register()
	return cl, nil
}

// Registry returns the schema registry of Config.SchemaRegistry, nil when there
// is none.
func (c *Client) Registry() *Registry { return c.registry }

// Ping returns nil once any broker has answered. Its error says which knob is
// wrong when credentials or certificates are refused.
func (c *Client) Ping(ctx context.Context) error {
	if err := c.producer.Ping(ctx); err != nil {
		return fmt.Errorf("ping: %w", c.why(err))
	}
	return nil
}

// why is err as this package says it. An attempt that ran out of time says
// nothing, so it is given what brokers said lately.
func (c *Client) why(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		if said := c.door.lately(); said != nil {
			return fmt.Errorf("%w; lately: %w", err, said)
		}
	}
	return translate(err)
}

// Close ends every ReadLog and Consume and fails what is still buffered with ErrClosed:
// call Flush first to keep it. Close may be called twice; it returns nil.
func (c *Client) Close() error {
	c.mu.Lock()
	done := c.closed
	c.closed = true
	for _, cancel := range c.readers {
		cancel(ErrClosed)
	}
	c.mu.Unlock()
	if !done {
		c.producer.Close()
		c.purges.Wait()
	}
	return nil
}

// attach binds a reader to the life of the client. The returned function lets
// go of it.
func (c *Client) attach(ctx context.Context, r any) (context.Context, func(), error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, ErrClosed
	}
	ctx, cancel := context.WithCancelCause(ctx)
	c.readers[r] = cancel
	return ctx, func() {
		c.mu.Lock()
		delete(c.readers, r)
		c.mu.Unlock()
		cancel(nil)
	}, nil
}

// pause waits for d or the end of ctx, whose error it returns.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return cause(ctx)
	}
}

// cause is why ctx ended: ErrClosed when the client was closed, else ctx's own
// error.
func cause(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), ErrClosed) {
		return ErrClosed
	}
	return ctx.Err()
}
