package usage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"penstock.dev/schemas"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"
	"penstock.dev/services/internal/kafka"
)

// How often what is not known yet is asked for, and what is known is looked at
// again: the topic, which may get more partitions, and the registry, which may
// be made anew.
const (
	retry     = time.Second
	lookAgain = 30 * time.Second
	askAgain  = 10 * time.Minute
)

// keepFor is how long events stay in the topic when the gateway makes it.
const keepFor = 7 * 24 * time.Hour

// stateFile remembers facts between runs, beside the files of the spool.
const stateFile = "state.json"

// A schemaID names the schema of a body: the SHA-256 of its text.
type schemaID = [sha256.Size]byte

var current = sha256.Sum256([]byte(schemas.UsageV1))

// texts are the schemas that bodies may have been written with, by their hash.
func texts() map[schemaID]string {
	all := map[schemaID]string{current: schemas.UsageV1}
	for _, text := range schemas.Published(usagev1.Topic) {
		all[sha256.Sum256([]byte(text))] = text
	}
	return all
}

// Facts are what sending needs to know: how many partitions there are, and the
// ids of schemas. They are remembered on disk, learned from Kafka and the
// registry, and looked at again.
type facts struct {
	cfg      Config
	producer Producer
	registry wire.Registry
	log      *slog.Logger
	changed  func()
	texts    map[schemaID]string

	mu         sync.Mutex
	partitions int32 // 0: not known
	ids        map[schemaID]uint32
	asked      map[schemaID]bool // to be learned
	look       chan struct{}     // holds one when the topic is to be looked at now
	ask        chan struct{}     // holds one when a schema is to be asked for
}

// A state is facts on disk.
type state struct {
	Partitions int32             `json:"partitions"`
	Schemas    map[string]uint32 `json:"schemas"` // ids by the SHA-256 of the text, in hexadecimal
}

func newFacts(cfg Config, producer Producer, registry wire.Registry, log *slog.Logger, changed func()) *facts {
	f := &facts{
		cfg: cfg, producer: producer, registry: registry, log: log, changed: changed, texts: texts(),
		ids: map[schemaID]uint32{}, asked: map[schemaID]bool{current: true},
		look: make(chan struct{}, 1), ask: make(chan struct{}, 1),
	}
	f.load()
	return f
}

// load reads what a former run has learned.
func (f *facts) load() {
	if f.cfg.Dir == "" {
		return
	}
	b, err := os.ReadFile(filepath.Join(f.cfg.Dir, stateFile))
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	var s state
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		f.log.Warn("what was known of usage.v1 is forgotten", "error", err.Error())
		return
	}
	if s.Partitions > 0 {
		f.partitions = s.Partitions
	}
	for text, id := range s.Schemas {
		if b, err := hex.DecodeString(text); err == nil && len(b) == sha256.Size {
			f.ids[schemaID(b)] = id
		}
	}
}

// save writes what is known. It is called with f.mu held.
func (f *facts) save() {
	if f.cfg.Dir == "" {
		return
	}
	s := state{Partitions: f.partitions, Schemas: map[string]uint32{}}
	for text, id := range f.ids {
		s.Schemas[hex.EncodeToString(text[:])] = id
	}
	b, err := json.Marshal(s)
	if err == nil {
		err = os.MkdirAll(f.cfg.Dir, 0o700)
	}
	path := filepath.Join(f.cfg.Dir, stateFile)
	if err == nil {
		err = os.WriteFile(path+".tmp", b, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		f.log.Warn("what is known of usage.v1 cannot be remembered", "error", err.Error())
	}
}

// guess is how many partitions to begin with.
func (f *facts) guess() int32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.partitions > 0 {
		return f.partitions
	}
	return usagev1.Partitions
}

// count is how many partitions the topic has, 0 when that is not known.
func (f *facts) count() int32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.partitions
}

// id is that of a schema at the registry. One that is not known is asked for.
// The error says that nobody will ever know.
func (f *facts) id(schema schemaID) (id uint32, known bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if id, ok := f.ids[schema]; ok {
		return id, true, nil
	}
	if _, ok := f.texts[schema]; !ok {
		return 0, false, fmt.Errorf("was written with schema %x, which this version does not have", schema[:8])
	}
	if !f.asked[schema] {
		f.asked[schema] = true
		poke(f.ask)
	}
	return 0, false, nil
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// learn keeps the facts true until ctx ends.
func (f *facts) learn(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { f.follow(ctx, lookAgain, f.look, f.lookAtTopic) })
	both.Go(func() { f.follow(ctx, askAgain, f.ask, f.askRegistry) })
	both.Wait()
}

// follow calls once again and again: soon after a failure, at once when it is
// poked, and else now and then.
func (f *facts) follow(ctx context.Context, again time.Duration, poked <-chan struct{}, once func(context.Context) error) {
	said := ""
	for {
		wait := again
		err := once(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			said = ""
		default:
			wait = retry
			if text := err.Error(); text != said {
				f.log.Warn("usage.v1 is not known well enough to send", "error", text)
				said = text
			}
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-poked:
		case <-t.C:
		}
		t.Stop()
	}
}

// lookAtTopic learns how many partitions there are, and makes the topic when it
// is missing.
func (f *facts) lookAtTopic(ctx context.Context) error {
	n, err := f.producer.Partitions(ctx, usagev1.Topic)
	if errors.Is(err, kafka.ErrNoTopic) {
		err = f.producer.EnsureTopics(ctx, []kafka.Topic{{
			Name: usagev1.Topic, Partitions: usagev1.Partitions, Replication: f.cfg.Replicas,
			Config: map[string]string{"cleanup.policy": "delete", "retention.ms": fmt.Sprint(keepFor.Milliseconds())},
		}})
		if err == nil {
			n, err = f.producer.Partitions(ctx, usagev1.Topic)
		}
	}
	if err != nil {
		return err
	}
	f.mu.Lock()
	was := f.partitions
	if n > 0 && n != was {
		f.partitions = n
		f.save()
	}
	f.mu.Unlock()
	if n > 0 && n != was {
		f.log.Info("partitions of usage.v1", "partitions", n, "before", was)
		f.changed()
	}
	return nil
}

// askRegistry learns the ids of every schema that was asked for. A registry that
// was made anew has others than were remembered.
func (f *facts) askRegistry(ctx context.Context) error {
	f.mu.Lock()
	var list []schemaID
	for schema := range f.asked {
		list = append(list, schema)
	}
	f.mu.Unlock()
	for _, schema := range list {
		id, err := f.registry.Register(ctx, usagev1.Subject, f.texts[schema])
		if err != nil {
			return fmt.Errorf("schema registry: %w", err)
		}
		f.mu.Lock()
		was, known := f.ids[schema]
		if !known || was != id {
			f.ids[schema] = id
			f.save()
		}
		f.mu.Unlock()
		if known && was != id {
			f.log.Warn("the schema registry knows usage.v1 by another id than before", "id", id, "before", was)
		}
		f.changed()
	}
	return nil
}
