package counters

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"math"
	"strconv"
	"time"

	"penstock.dev/services/internal/limit"
)

// A Mark is what was told of a decision's corrections.
type Mark struct {
	Tenant   string
	Decision [16]byte
	Settled  int64 // the cost it was settled at; -1: not
	Before   int64 // units given back by refunds before it was settled
	Refunds  []Refund
	Until    time.Time // when it may be forgotten
}

// A Refund is one that was made.
type Refund struct {
	ID    string
	Units int64
}

// Key is where the mark lies.
func (m *Mark) Key() string {
	return string(hex.AppendEncode(append(appendOwner(make([]byte, 0, 64), m.Tenant, ""), ":ref:"...), m.Decision[:]))
}

// flagRestored says that what a mark left is to be worked out by the receipt.
const flagRestored = 2

// value is the mark as lua/correct.lua has it.
func (m *Mark) value() []byte {
	total := int64(0)
	for _, r := range m.Refunds {
		total += r.Units
	}
	b := appendDoubles([]byte{version}, 0, m.Settled, total)
	b = appendDoubles(append(b, flagRestored), 0, m.Before, 0)
	b = append(b, 0) // no counter is known to have had no room
	total = 0
	for _, r := range m.Refunds[:min(len(m.Refunds), limit.MaxRefunds)] {
		total += r.Units
		id := r.ID[:min(len(r.ID), math.MaxUint8)]
		b = appendDoubles(append(append(b, byte(len(id))), id...), r.Units, total, 0)
	}
	return b
}

// appendDoubles appends numbers as values have them.
func appendDoubles(b []byte, numbers ...int64) []byte {
	for _, v := range numbers {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(v)))
	}
	return b
}

// Remember restores what is known of corrections, but of those that may be
// forgotten by now. Each decision is to be there once. It returns how many the
// store did not know. The error wraps ErrUnavailable; it may then be repeated.
func (c *Custody) Remember(ctx context.Context, marks []Mark, now time.Time) (written int, err error) {
	keys, live := make([]string, 0, len(marks)), make([]*Mark, 0, len(marks))
	for i := range marks {
		if marks[i].Until.After(now) {
			keys, live = append(keys, marks[i].Key()), append(live, &marks[i])
		}
	}
	counts := make(chan int, len(live)+1)
	work := c.store.inSlots(len(live), maxRestored, func(i int) string { return keys[i] }, func(slot int, some []int) errand {
		return errand{slot: slot, script: &c.store.scripts.remember, words: func(string) []any {
			words := make([]any, 1, 1+3*len(some))
			words[0] = len(some)
			for _, i := range some {
				words = append(words, keys[i])
			}
			for _, i := range some {
				words = append(words, live[i].value())
			}
			for _, i := range some {
				words = append(words, strconv.FormatInt(max(1, live[i].Until.Sub(now).Milliseconds()), 10))
			}
			return words
		}, take: func(_ string, replies []any) error {
			n, ok := int64(0), len(replies) == 1
			if ok {
				n, ok = replies[0].(int64)
			}
			if !ok {
				return errReply
			}
			counts <- int(n)
			return nil
		}}
	})
	if err := c.store.errands(ctx, work); err != nil {
		return 0, c.store.wrap(ctx, err)
	}
	close(counts)
	for n := range counts {
		written += n
	}
	return written, nil
}
