package propagation

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"penstock.dev/loadtest/system"
	"penstock.dev/schemas/rulesv1"
)

const rulesTopic = rulesv1.Topic

// logs knows when which version of a record was first seen on which topic.
type logs struct {
	client *kgo.Client
	done   sync.WaitGroup
	topics []string
	watch  *watch // is told of what is stored on rules.v1

	mu   sync.Mutex
	seen map[string]map[int64]time.Time
}

// follow reads rules.v1 and the given topics from their starts.
func follow(ctx context.Context, s *system.System, topics []string, w *watch) (*logs, error) {
	l := &logs{watch: w, topics: append([]string{rulesTopic}, topics...), seen: map[string]map[int64]time.Time{}}
	for _, t := range l.topics {
		l.seen[t] = map[int64]time.Time{}
	}
	var err error
	l.client, err = kgo.NewClient(
		s.KafkaOption(),
		kgo.ConsumeTopics(l.topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.MetadataMinAge(100*time.Millisecond), kgo.DisableClientMetrics(),
	)
	if err != nil {
		return nil, err
	}
	l.done.Go(func() { l.run(ctx) })
	return l, nil
}

func (l *logs) stop() {
	l.client.Close()
	l.done.Wait()
}

func (l *logs) run(ctx context.Context) {
	for {
		fetches := l.client.PollFetches(ctx)
		now := time.Now()
		if fetches.IsClientClosed() || ctx.Err() != nil {
			return
		}
		fetches.EachRecord(func(r *kgo.Record) { l.note(r, now) })
	}
}

// note keeps when a version was first seen on a topic.
func (l *logs) note(r *kgo.Record, now time.Time) {
	for _, h := range r.Headers {
		version, err := rulesv1.ParseVersion(h.Value)
		if h.Key != rulesv1.HeaderVersion || err != nil {
			continue
		}
		l.mu.Lock()
		if _, ok := l.seen[r.Topic][version]; !ok {
			l.seen[r.Topic][version] = now
		}
		l.mu.Unlock()
		if kind, id, err := rulesv1.ParseKey(r.Key); r.Topic == rulesTopic && kind == rulesv1.KindRule && err == nil {
			l.watch.stored(id, version)
		}
	}
}

// at is when a version was first seen on a topic.
func (l *logs) at(topic string, version int64) (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.seen[topic][version]
	return at, ok
}

// await waits until a version is on every topic: versions arrive in order.
func (l *logs) await(ctx context.Context, version int64, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for _, topic := range l.topics {
		for _, ok := l.at(topic, version); !ok; _, ok = l.at(topic, version) {
			select {
			case <-ctx.Done():
				return fmt.Errorf("version %d did not arrive on %s within %v", version, topic, within)
			case <-tick.C:
			}
		}
	}
	return nil
}
