package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Topic is where the registry keeps what it knows.
const Topic = "_schemas"

// writeTimeout bounds the acknowledgement of one write.
const writeTimeout = 10 * time.Second

// Config says where the registry keeps its topic and how strict it is.
type Config struct {
	Brokers []string // host:port
	Level   Level    // for subjects without one of their own; empty means FULL_TRANSITIVE
}

// A Registry answers for the schemas in its topic. It is safe for concurrent
// use.
type Registry struct {
	level  Level
	log    *slog.Logger
	client *kgo.Client

	mu    sync.RWMutex
	state *state
	stale bool // a write failed half-way: the topic must be read again
}

// Open creates the topic if it is missing, reads it to its end and returns the
// registry it describes.
func Open(ctx context.Context, cfg Config, log *slog.Logger) (*Registry, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(cfg.Brokers...),
		kgo.ClientID("schema-registry"),
		kgo.ProducerLinger(0),
		kgo.MetadataMinAge(100*time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RecordDeliveryTimeout(writeTimeout),
		kgo.FetchMaxWait(100*time.Millisecond),
		kgo.DisableClientMetrics(),
	)
	if err != nil {
		return nil, err
	}
	r := &Registry{level: cfg.Level, log: log, client: client}
	if r.level == "" {
		r.level = FullTransitive
	}
	err = r.ensureTopic(ctx)
	if err == nil {
		err = r.load(ctx)
	}
	if err != nil {
		client.Close()
		return nil, err
	}
	return r, nil
}

// Close lets go of the broker.
func (r *Registry) Close() { r.client.Close() }

func (r *Registry) ensureTopic(ctx context.Context) error {
	policy := "compact"
	resp, err := kadm.NewClient(r.client).CreateTopic(ctx, 1, 1, map[string]*string{"cleanup.policy": &policy}, Topic)
	if err == nil {
		err = resp.Err
	}
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("create %s: %w", Topic, err)
	}
	return nil
}

// load reads the topic from its start up to a record written just now, which
// ends the reading whatever compaction has left of the rest.
func (r *Registry) load(ctx context.Context) error {
	mark, err := r.append(ctx, change{key: key{KeyType: keyNoop}})
	if err != nil {
		return fmt.Errorf("mark the end of %s: %w", Topic, err)
	}
	r.client.AddConsumePartitions(map[string]map[int32]kgo.Offset{Topic: {0: kgo.NewOffset().AtStart()}})
	defer r.client.RemoveConsumePartitions(map[string][]int32{Topic: {0}})
	s := newState()
	for seen := int64(-1); seen < mark; {
		fetches := r.client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read %s: %w", Topic, err)
		}
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("read %s: %w", Topic, err)
		}
		fetches.EachRecord(func(rec *kgo.Record) {
			if err := s.replay(rec.Key, rec.Value); err != nil {
				r.log.Warn("record skipped", "topic", Topic, "offset", rec.Offset, "error", err.Error())
			}
			seen = rec.Offset
		})
	}
	r.state, r.stale = s, false
	r.log.Info("schemas read", "subjects", len(s.subjects), "next_id", s.nextID)
	return nil
}

// commit writes the changes, in order, and then makes them. When a write fails,
// whether it was stored is unknown, so the topic is read again before the next.
// A caller that goes away does not make it fail.
func (r *Registry) commit(ctx context.Context, changes ...change) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	if _, err := r.append(ctx, changes...); err != nil {
		r.stale = true
		return errStore(err)
	}
	for _, c := range changes {
		r.state.apply(c)
	}
	return nil
}

// append writes the changes and returns the offset of the last.
func (r *Registry) append(ctx context.Context, changes ...change) (int64, error) {
	records := make([]*kgo.Record, len(changes))
	for i, c := range changes {
		k, err := json.Marshal(c.key)
		if err != nil {
			return 0, err
		}
		records[i] = &kgo.Record{Topic: Topic, Key: k}
		if c.value != nil {
			if records[i].Value, err = json.Marshal(c.value); err != nil {
				return 0, err
			}
		}
	}
	if err := r.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return 0, err
	}
	return records[len(records)-1].Offset, nil
}

// alone runs f with nobody beside it, on a state that is what the topic says.
// Whoever parses schemas or commits must be alone.
func (r *Registry) alone(ctx context.Context, f func(s *state) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stale {
		if err := r.load(ctx); err != nil {
			return errStore(err)
		}
	}
	return f(r.state)
}

// beside runs f beside other readers. It must not parse.
func (r *Registry) beside(f func(s *state) error) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return f(r.state)
}
