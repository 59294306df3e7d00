package checkpoint_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"penstock.dev/services/checkpointer/checkpoint"
	"penstock.dev/services/internal/limit"
)

func charge(key string, units, consumed, refunded int64) checkpoint.Charge {
	return checkpoint.Charge{Units: units, Counter: checkpoint.Counter{Key: key, Meter: "units", Totals: limit.Totals{Consumed: consumed, Refunded: refunded}}}
}

// TestPartCountsEachEventOnce guarantees that what events told is counted once,
// however often and in whatever order they come, and that totals are the greatest.
func TestPartCountsEachEventOnce(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // a test's
	for range 200 {
		const events = 60
		p := checkpoint.NewPart(0, 0, nil)
		var order []int
		for n := range events {
			order = append(order, n)
			if random.IntN(5) == 0 {
				order = append(order, random.IntN(n+1)) // a repeat
			}
		}
		for range 3 { // neighbours change places: a few holes at a time
			i := 1 + random.IntN(len(order)-2)
			order[i], order[i+1] = order[i+1], order[i]
		}
		for offset, n := range order {
			e := checkpoint.Event{
				Offset: int64(offset), Stream: [16]byte{1}, Sequence: int64(n + 1),
				Charges: []checkpoint.Charge{charge("a", 2, int64(2*n+2), 0)},
			}
			p.Take(&e)
			p.Take(&e) // contained
			if random.IntN(10) == 0 {
				saved := checkpoint.Merge([]*checkpoint.Part{p}, func(*checkpoint.Part) bool { return true })
				p.Saved()
				if p.Dirty() || len(p.Changes) != 0 {
					t.Fatal("something is left of what was saved")
				}
				e := checkpoint.Event{Offset: int64(offset), Stream: [16]byte{1}, Sequence: int64(n + 1), Charges: []checkpoint.Charge{charge("a", 2, 1, 0)}}
				p.Take(&e)
				p.Changes["a"] = saved[0] // carried on, to be looked at in the end
			}
		}
		if got := p.Changes["a"]; got.Told != 2*events || got.Consumed != 2*events {
			t.Fatalf("told %d and consumed %d of %d, order %v", got.Told, got.Consumed, 2*events, order)
		}
		if n := p.Streams[[16]byte{1}].Missing(); n != 0 {
			t.Fatalf("%d are missing", n)
		}
	}
}

// TestStreamIsBounded guarantees that what is remembered of a stream does not grow
// with what is missing, which is counted instead.
func TestStreamIsBounded(t *testing.T) {
	t.Parallel()
	p := checkpoint.NewPart(0, 0, nil)
	for n := range 100 {
		p.Take(&checkpoint.Event{Offset: int64(n), Stream: [16]byte{1}, Sequence: int64(2*n + 1)})
	}
	s := p.Streams[[16]byte{1}]
	if len(s.Holes) > 8 || s.Missing() != 99 {
		t.Errorf("%d holes, %d missing; want at most 8 and 99", len(s.Holes), s.Missing())
	}
}

// TestMerge guarantees that parts are added up in the order of keys, and that what
// a part told which somebody else has counted is left out, but for its totals.
func TestMerge(t *testing.T) {
	t.Parallel()
	one, two := checkpoint.NewPart(0, 0, nil), checkpoint.NewPart(1, 0, nil)
	one.Take(&checkpoint.Event{Charges: []checkpoint.Charge{charge("b", 3, 3, 1), charge("a", 1, 1, 0)}})
	two.Take(&checkpoint.Event{Charges: []checkpoint.Charge{charge("b", 5, 2, 2)}})
	got := checkpoint.Merge([]*checkpoint.Part{one, two}, func(p *checkpoint.Part) bool { return p == one })
	if len(got) != 2 || got[0].Key != "a" || got[1].Told != 3 || got[1].Totals != (limit.Totals{Consumed: 3, Refunded: 2}) {
		t.Errorf("%+v %+v", *got[0], *got[1])
	}
	if one.Changes["b"].Told != 3 || one.Changes["b"].Refunded != 1 {
		t.Error("a part was changed by being merged")
	}
}

// TestMarks guarantees that corrections are gathered by decision in the order in
// which they were made, each refund and the first settlement once.
func TestMarks(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	made := []checkpoint.Correction{
		{Tenant: "b", Decision: [16]byte{1}, Refund: "x", Units: 9, At: at},
		{Tenant: "a", Decision: [16]byte{1}, Refund: "r2", Units: 2, At: at.Add(3 * time.Second)},
		{Tenant: "a", Decision: [16]byte{1}, Units: 8, At: at.Add(2 * time.Second)},
		{Tenant: "a", Decision: [16]byte{1}, Refund: "r1", Units: 3, At: at.Add(time.Second)},
		{Tenant: "a", Decision: [16]byte{1}, Refund: "r1", Units: 3, At: at.Add(time.Second)},
		{Tenant: "a", Decision: [16]byte{1}, Units: 7, At: at.Add(4 * time.Second)},
	}
	got := checkpoint.Marks(made)
	if len(got) != 2 || got[1].Tenant != "b" || got[1].Settled != -1 {
		t.Fatalf("%+v", got)
	}
	m := got[0]
	ids := []string{}
	for _, r := range m.Refunds {
		ids = append(ids, r.Refund)
	}
	if m.Settled != 8 || m.Before != 3 || !slices.Equal(ids, []string{"r1", "r2"}) || !m.Until.Equal(at.Add(4*time.Second+limit.RememberCorrections)) {
		t.Errorf("%+v", m)
	}
}

// A world is books, a store and a topic that do as a test says.
type world struct {
	checkpoint.Books
	checkpoint.Store
	steps     []string
	lost      bool
	kept      bool
	unlocked  bool
	emptied   int // times that the store is found emptied when it is to be vouched for
	tail      error
	away      error // of the store
	recovered []checkpoint.Recovery
	lowered   int

	made  []checkpoint.Correction // of the books, in order
	told  []checkpoint.Correction // of the tail
	marks []checkpoint.Mark
}

func (w *world) note(step string) { w.steps = append(w.steps, step) }

func (w *world) Look(context.Context) ([]int, error) {
	if w.away != nil {
		return nil, w.away
	}
	if w.lost {
		return []int{0}, nil
	}
	return nil, nil
}

func (w *world) Claim(context.Context, []int) (checkpoint.Claim, error) {
	w.note("claim")
	return claim{}, nil
}

type claim struct{}

func (claim) Covers(key string) bool { return key != "elsewhere" }
func (claim) Since() time.Time       { return time.Unix(100, 0) }

func (w *world) Lock(context.Context) (func(), bool, error) {
	if w.unlocked {
		return nil, false, nil
	}
	return func() { w.note("unlock") }, true, nil
}

func (w *world) Kept(context.Context) (checkpoint.Kept, error) {
	return checkpoint.Kept{Any: w.kept, Since: time.Unix(50, 0)}, nil
}

func (w *world) Begin(context.Context, time.Time) error {
	w.kept = true
	return nil
}

func (w *world) Parts(context.Context, []int32) ([]*checkpoint.Part, error) {
	w.note("offsets")
	return nil, nil
}

func (w *world) Counters(_ context.Context, after string, _ int, _ time.Time) ([]checkpoint.Counter, error) {
	if after != "" {
		return nil, nil
	}
	w.note("counters")
	return []checkpoint.Counter{{Key: "a", Totals: limit.Totals{Consumed: 7}}, {Key: "elsewhere"}}, nil
}

func (w *world) Corrections(_ context.Context, _ time.Time, after checkpoint.Correction, n int) ([]checkpoint.Correction, error) {
	from := 0
	if after.Tenant != "" {
		from = 1 + slices.Index(w.made, after)
	}
	return slices.Clone(w.made[from:min(from+n, len(w.made))]), nil
}

func (w *world) Remember(_ context.Context, marks []checkpoint.Mark, _ time.Time) (int, error) {
	w.marks = append(w.marks, marks...)
	return len(marks), nil
}

func (w *world) Tail(context.Context, []*checkpoint.Part, time.Duration) ([]*checkpoint.Part, bool, error) {
	if w.tail != nil {
		return nil, false, w.tail
	}
	p := checkpoint.NewPart(0, 0, nil)
	p.Take(&checkpoint.Event{Charges: []checkpoint.Charge{charge("a", 2, 9, 0)}})
	p.Made = w.told
	return []*checkpoint.Part{p}, true, nil
}

func (w *world) Restore(_ context.Context, saved []checkpoint.Saved) (checkpoint.Restored, error) {
	for _, s := range saved {
		w.note("restore " + s.Key)
	}
	return checkpoint.Restored{Added: len(saved)}, nil
}

func (w *world) Vouch(_ context.Context, _ checkpoint.Claim, since time.Time) error {
	if w.emptied > 0 {
		w.emptied--
		return checkpoint.ErrReplaced
	}
	w.lost = false
	w.note("vouch " + map[bool]string{true: "since the loss", false: "since ever"}[since.IsZero()])
	return nil
}

func (w *world) Missed(context.Context, string, error) {}
func (w *world) Done(context.Context, string)          {}
func (w *world) Saved(int, time.Duration)              {}
func (w *world) Began(context.Context)                 { w.note("began") }
func (w *world) Lowered(context.Context, checkpoint.Restored) {
	w.lowered++
}
func (w *world) Stock(checkpoint.Stock) {}
func (w *world) Recovered(_ context.Context, r checkpoint.Recovery) {
	w.recovered = append(w.recovered, r)
}

// TestRecoveryOrder guarantees the order of a recovery: nobody vouches before all of
// the books and of the tail lies there, offsets are read before counters, only what
// was claimed is restored, and a store that was emptied meanwhile is restored anew.
func TestRecoveryOrder(t *testing.T) {
	t.Parallel()
	whole := []string{"claim", "offsets", "counters", "restore a", "restore a", "vouch since ever", "unlock"}
	for name, tt := range map[string]struct {
		world world
		looks int
		want  []string
	}{
		"nobody knows it":         {world{lost: true}, 1, []string{"claim", "vouch since the loss", "began", "unlock"}},
		"it is kept":              {world{lost: true, kept: true}, 1, whole},
		"nothing is lost":         {world{kept: true}, 1, nil},
		"another restores it":     {world{lost: true, kept: true, unlocked: true}, 1, nil},
		"emptied again meanwhile": {world{lost: true, kept: true, emptied: 1}, 2, slices.Concat([]string{"claim", "offsets", "counters", "restore a", "restore a", "unlock"}, whole)},
		"without the topic":       {world{lost: true, kept: true, tail: errors.New("no broker")}, 1, []string{"claim", "offsets", "counters", "restore a", "vouch since the loss", "unlock"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &tt.world
			k := checkpoint.New(checkpoint.Config{Patience: time.Minute}, w, w, w, w, time.Now)
			for range tt.looks {
				if err := k.Look(t.Context()); err != nil && !errors.Is(err, checkpoint.ErrReplaced) {
					t.Fatal(err)
				}
			}
			if !slices.Equal(w.steps, tt.want) {
				t.Errorf("%q, want %q", w.steps, tt.want)
			}
			for _, r := range w.recovered {
				if r.Tail != (w.tail == nil) || !errors.Is(r.Reason, w.tail) {
					t.Errorf("%+v", r)
				}
			}
			if w.lowered != 0 {
				t.Error("a recovery is no alarm")
			}
		})
	}
}

// TestMarksByPages guarantees that what is known of corrections is restored whole
// whatever its number: each decision once, with all that the books say of it on
// two pages and what the tail adds, in order.
func TestMarksByPages(t *testing.T) {
	t.Parallel()
	at := time.Now().Add(-time.Hour)
	decision := func(n int) (id [16]byte) {
		binary.BigEndian.PutUint64(id[:], uint64(n))
		return id
	}
	w := &world{lost: true, kept: true}
	const decisions = checkpoint.Page*5/6 + 1 // three rows each: a page ends within a decision
	for n := range decisions {
		for k, refund := range []string{"", "r1", "r2"} {
			w.made = append(w.made, checkpoint.Correction{
				Tenant: "acme", Decision: decision(n), Refund: refund, Units: int64(k + 1), At: at.Add(time.Duration(k) * time.Second),
			})
		}
	}
	for _, n := range []int{0, checkpoint.Page / 3, checkpoint.Page * 2 / 3, decisions - 1, decisions + 5} {
		w.told = append(w.told, checkpoint.Correction{Tenant: "acme", Decision: decision(n), Refund: "r3", Units: 9, At: at.Add(time.Minute)})
	}
	w.told = append(w.told, checkpoint.Correction{Tenant: "zeta", Decision: decision(0), Refund: "r3", Units: 9, At: at})
	want := checkpoint.Marks(slices.Concat(w.made, w.told))
	k := checkpoint.New(checkpoint.Config{Patience: time.Minute}, w, w, w, w, time.Now)
	if err := k.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(w.made) <= 2*checkpoint.Page || len(w.marks) != len(want) || len(want) != decisions+2 {
		t.Fatalf("%d marks of %d corrections, want %d of more than two pages", len(w.marks), len(w.made), len(want))
	}
	for i := range want {
		if !reflect.DeepEqual(w.marks[i], want[i]) {
			t.Fatalf("mark %d is %+v, want %+v", i, w.marks[i], want[i])
		}
	}
}

// TestReady guarantees that a store is said to be kept while it answers and somebody
// vouches for it, and not otherwise.
func TestReady(t *testing.T) {
	t.Parallel()
	w := &world{kept: true}
	k := checkpoint.New(checkpoint.Config{}, w, w, w, w, time.Now)
	look := func(what string, ready bool) {
		t.Helper()
		if err := k.Look(t.Context()); !errors.Is(err, w.away) {
			t.Fatal(err)
		}
		if err := k.Ready(); (err == nil) != ready {
			t.Errorf("%s: %v", what, err)
		}
	}
	if k.Ready() == nil {
		t.Error("ready before any look")
	}
	look("it answers", true)
	w.away = errors.New("refused")
	look("it is away", false)
	w.away = nil
	look("it is back", true)
	w.lost, w.unlocked = true, true
	look("another restores it", false)
}
