package kafkatest

import (
	"github.com/twmb/franz-go/pkg/kadm"
)

// GroupState is what the broker calls the state of a consumer group, e.g.
// Stable, or PreparingRebalance while it waits for its members.
func (b *Broker) GroupState(group string) string {
	b.t.Helper()
	cl, ctx, done := b.client()
	defer done()
	groups, err := kadm.NewClient(cl).DescribeGroups(ctx, group)
	if err != nil {
		b.t.Fatalf("group %s: %v", group, err)
	}
	return groups[group].State
}

// Committed is what a group has committed in a topic: by partition, the offset
// it would go on from.
func (b *Broker) Committed(group, topic string) map[int32]int64 {
	b.t.Helper()
	cl, ctx, done := b.client()
	defer done()
	offsets, err := kadm.NewClient(cl).FetchOffsets(ctx, group)
	if err != nil {
		b.t.Fatalf("offsets of group %s: %v", group, err)
	}
	at := make(map[int32]int64)
	for p, o := range offsets[topic] {
		at[p] = o.At
	}
	return at
}
