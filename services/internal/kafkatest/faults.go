package kafkatest

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A Fault is a failure that lasts until Mend.
type Fault struct {
	b *Broker
	h *kfake.FaultHandle
}

// Mend ends the fault.
func (f *Fault) Mend() { f.h.Remove() }

// Hits is how many requests the fault has met so far.
func (f *Fault) Hits() int { return f.h.Hits() }

// Wait returns once the fault has met n requests.
func (f *Fault) Wait(n int) {
	f.b.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.b.t.Context()), Patience)
	defer cancel()
	if err := f.h.Wait(ctx, n); err != nil {
		f.b.t.Fatalf("the fault met %d requests, want %d: %v", f.h.Hits(), n, err)
	}
}

func (b *Broker) fault(f kfake.Fault) *Fault {
	b.t.Helper()
	f.Count = -1
	return &Fault{b, b.Cluster().Fault(f)}
}

// PauseProduce makes one partition refuse every record, as one without a
// leader does, while the others go on: producers keep trying, and what they
// send is acknowledged only after Mend.
func (b *Broker) PauseProduce(topic string, partition int32) *Fault {
	b.t.Helper()
	return b.fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Partitions: []int32{partition},
		Err: kerr.NotEnoughReplicas,
	})
}

// LoseAcks makes one partition store every record and answer that it timed
// out, so that an idempotent producer sends it again.
func (b *Broker) LoseAcks(topic string, partition int32) *Fault {
	b.t.Helper()
	return b.fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Partitions: []int32{partition},
		Err: kerr.RequestTimedOut,
	})
}

// RefuseProduce makes a topic refuse every record for good, as one too large.
func (b *Broker) RefuseProduce(topic string) *Fault {
	b.t.Helper()
	return b.fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Err: kerr.MessageTooLarge})
}

// FailFetch makes reading a topic fail with an error that clients report.
func (b *Broker) FailFetch(topic string) *Fault {
	b.t.Helper()
	return b.fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: topic, Err: kerr.TopicAuthorizationFailed})
}

// Watch counts requests of one kind and changes nothing.
func (b *Broker) Watch(key kmsg.Key) *Fault {
	b.t.Helper()
	return b.fault(kfake.Fault{Keys: []kmsg.Key{key}, Observe: true, TopLevel: false})
}
