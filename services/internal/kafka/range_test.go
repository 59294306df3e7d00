package kafka_test

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
)

// TestReadRange guarantees that a range has every record between its offsets,
// once, and none that was written meanwhile; and that it says where the topic no
// longer had what was asked for.
func TestReadRange(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	c := open(t, b)
	b.CreateTopic("range", 3)
	stamped(b, "range", 0, 30) // value n at offset n/3 of partition n%3
	b.DeleteRecords("range", 2, 2)
	everything := map[int32]kafka.Range{0: {From: 0, To: 10}, 1: {From: 0, To: 10}, 2: {From: 2, To: 10}}
	for _, tt := range []struct {
		name     string
		from, to map[int32]int64
		want     map[int32]kafka.Range
	}{
		{"everything", nil, nil, everything},
		{"from offsets on", map[int32]int64{0: 4, 1: 10, 2: 0}, nil, map[int32]kafka.Range{0: {From: 4, To: 10}, 1: {From: 10, To: 10}, 2: {From: 2, To: 10}}},
		{"up to offsets", map[int32]int64{0: 4}, map[int32]int64{0: 6, 2: 3}, map[int32]kafka.Range{0: {From: 4, To: 6}, 2: {From: 2, To: 3}}},
		{"beyond the end", map[int32]int64{0: 11, 1: 10, 2: 10}, nil, map[int32]kafka.Range{0: {From: 0, To: 10}, 1: {From: 10, To: 10}, 2: {From: 10, To: 10}}},
		{"nothing", map[int32]int64{0: 10, 1: 10, 2: 10}, nil, map[int32]kafka.Range{0: {From: 10, To: 10}, 1: {From: 10, To: 10}, 2: {From: 10, To: 10}}},
	} {
		var got []kafka.Record
		ranges, err := c.ReadRange(t.Context(), "range", tt.from, tt.to, func(rs []kafka.Record) error {
			got = append(got, rs...)
			return nil
		})
		if err != nil || !maps.Equal(ranges, tt.want) {
			t.Errorf("%s: %v, %v; want %v", tt.name, ranges, err, tt.want)
		}
		var want []int
		for p, r := range tt.want {
			for o := r.From; o < r.To; o++ {
				want = append(want, int(3*o)+int(p))
			}
		}
		slices.Sort(want)
		if !slices.Equal(numbers(got), want) {
			t.Errorf("%s: read %v, want %v", tt.name, numbers(got), want)
		}
	}
	if _, err := c.ReadRange(t.Context(), "nowhere", nil, nil, nil); !errors.Is(err, kafka.ErrNoTopic) {
		t.Errorf("a topic that is not there: %v", err)
	}
	broken := errors.New("broken")
	if _, err := c.ReadRange(t.Context(), "range", nil, nil, func([]kafka.Record) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("the handler's error is %v", err)
	}
	if err := c.ReadRangeFrom(t.Context(), "range", nil, nil, func(map[int32]kafka.Range) error { return broken }, nil); !errors.Is(err, broken) {
		t.Errorf("the error of begin is %v", err)
	}
}
