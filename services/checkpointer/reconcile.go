package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"penstock.dev/services/checkpointer/checkpoint"
	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/conf"
)

// A finding is one counter as reconcile prints it, in units.
type finding struct {
	Key        string `json:"key"`
	Meter      string `json:"meter,omitempty"`
	Consumed   int64  `json:"consumed"`   // in the store
	Refunded   int64  `json:"refunded"`   // in the store
	Checkpoint int64  `json:"checkpoint"` // consumed less refunded
	Events     int64  `json:"events"`     // sum of distinct events: charged less given back

	// Unattributed is what was used and no event told of, and Missing what the
	// checkpoint knows and the store does not.
	Unattributed int64 `json:"unattributed"`
	Missing      int64 `json:"missing"`
}

// A summary is the last line.
type summary struct {
	Counters     int   `json:"counters"`
	Differing    int   `json:"differing"`
	Unattributed int64 `json:"unattributed"` // without signs
	Missing      int64 `json:"missing"`
	LostEvents   int64 `json:"lost_events"` // numbers of streams that never came
}

var errDrift = errors.New("the counter store, the checkpoints and the events differ")

func parseReconcile(args []string, getenv func(string) string) (config, error) {
	var c config
	s := conf.New("checkpointer reconcile", getenv)
	c.reach(s)
	s.Bool(&c.json, "json", false, "print one JSON object a line: each counter, then the sums")
	s.Bool(&c.all, "all", false, "print also counters that agree")
	if err := s.Parse(args); err != nil {
		return c, err
	}
	c.check = s.Check()
	return c, conf.Refuse(c.reachable())
}

// reconcile holds the counter store, the checkpoints and the events against each
// other, counter by counter, and changes nothing. Where they differ it ends with an
// error: exit code 1.
func reconcile(ctx context.Context, p boot.Process, args []string, out io.Writer) error {
	cfg, err := parseReconcile(args, p.Getenv)
	if err != nil || cfg.check {
		return err
	}
	w, err := assemble(ctx, &cfg, p)
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(w.books.Close(), w.counters.Close(), w.broker.Close()) }()
	if err := w.books.Prepare(ctx); err != nil {
		return err
	}
	return w.reconcile(ctx, &cfg, out)
}

// reconcile compares until no checkpoint comes between, three times at most, and
// writes what was found last.
func (w *wiring) reconcile(ctx context.Context, cfg *config, out io.Writer) (err error) {
	var page bytes.Buffer
	var sum summary
	for tries, still := 0, false; !still && tries < 3; tries++ {
		page.Reset()
		sum, still, err = compare(ctx, w, func(f finding) error {
			if f.Unattributed == 0 && f.Missing == 0 && !cfg.all {
				return nil
			}
			return say(&page, cfg.json, f, "%s: used %d, checkpoint %d, events %d: %d unattributed, %d missing in the store\n",
				f.Key, f.Consumed-f.Refunded, f.Checkpoint, f.Events, f.Unattributed, f.Missing)
		})
		if err != nil {
			return err
		}
	}
	if err := say(&page, cfg.json, sum, "%d counters, %d differ: %d units unattributed, %d missing in the store, %d events lost\n",
		sum.Counters, sum.Differing, sum.Unattributed, sum.Missing, sum.LostEvents); err != nil {
		return err
	}
	if _, err := page.WriteTo(out); err != nil {
		return err
	}
	if sum.Differing > 0 {
		return errDrift
	}
	return nil
}

func say(w io.Writer, asJSON bool, v any, format string, a ...any) error {
	if asJSON {
		return json.NewEncoder(w).Encode(v)
	}
	_, err := fmt.Fprintf(w, format, a...)
	return err
}

// waitUsage is how long usage.v1 may say nothing while it is read.
const waitUsage = time.Minute

// compare compares all counters that are kept, with what usage.v1 tells beyond
// the checkpoint. Still is false where a checkpoint was made meanwhile: what that
// contains may be counted twice.
func compare(ctx context.Context, w *wiring, found func(finding) error) (sum summary, still bool, err error) {
	parts, err := w.books.Parts(ctx, nil)
	if err != nil {
		return sum, false, err
	}
	began := contained(parts)
	if parts, _, err = w.reader.Tail(ctx, parts, waitUsage); err != nil {
		return sum, false, err
	}
	for _, p := range parts {
		for _, s := range p.Streams {
			sum.LostEvents += s.Missing()
		}
	}
	beyond := map[string]*checkpoint.Counter{}
	for _, c := range checkpoint.Merge(parts, func(*checkpoint.Part) bool { return true }) {
		beyond[c.Key] = c
	}
	judge := func(page []checkpoint.Counter) error { return judge(ctx, w, page, beyond, &sum, found) }
	for after := ""; ; {
		page, err := w.books.Counters(ctx, after, checkpoint.Page, time.Now())
		if err != nil {
			return sum, false, err
		}
		if len(page) == 0 {
			break
		}
		after = page[len(page)-1].Key
		if err := judge(page); err != nil {
			return sum, false, err
		}
	}
	var rest []checkpoint.Counter
	for _, c := range checkpoint.Sorted(beyond) {
		rest = append(rest, checkpoint.Counter{Key: c.Key, Meter: c.Meter})
	}
	if err := judge(rest); err != nil {
		return sum, false, err
	}
	parts, err = w.books.Parts(ctx, nil)
	return sum, maps.Equal(began, contained(parts)), err
}

// contained are the offsets up to which the books contain partitions.
func contained(parts []*checkpoint.Part) map[int32]int64 {
	offsets := make(map[int32]int64, len(parts))
	for _, p := range parts {
		offsets[p.Partition] = p.Stored
	}
	return offsets
}

// judge compares some counters.
func judge(ctx context.Context, w *wiring, page []checkpoint.Counter, beyond map[string]*checkpoint.Counter, sum *summary, found func(finding) error) error {
	keys := make([]string, len(page))
	for i := range page {
		keys[i] = page[i].Key
	}
	live, err := w.counters.Custody().Read(ctx, keys)
	if err != nil {
		return err
	}
	for i, c := range page {
		f := finding{
			Key: c.Key, Meter: c.Meter, Consumed: live[i].Consumed, Refunded: live[i].Refunded,
			Checkpoint: c.Consumed - c.Refunded, Events: c.Told,
		}
		if more := beyond[c.Key]; more != nil {
			f.Events += more.Told
			c.Raise(more.Totals)
			delete(beyond, c.Key)
		}
		f.Unattributed = max(live[i].Consumed, c.Consumed) - max(live[i].Refunded, c.Refunded) - f.Events
		f.Missing = max(0, c.Consumed-live[i].Consumed) + max(0, c.Refunded-live[i].Refunded)
		if sum.Counters++; f.Unattributed != 0 || f.Missing != 0 {
			sum.Differing++
		}
		sum.Unattributed, sum.Missing = sum.Unattributed+max(f.Unattributed, -f.Unattributed), sum.Missing+f.Missing
		if err := found(f); err != nil {
			return err
		}
	}
	return nil
}
