package wire_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock.dev/schemas/wire"
)

// TestFrame guarantees that a value is framed as Confluent's clients frame it,
// and that what is not is poison.
func TestFrame(t *testing.T) {
	t.Parallel()

	got := wire.Frame([]byte("x"), 0x01020304, []byte("body"))
	if want := "x\x00\x01\x02\x03\x04body"; string(got) != want {
		t.Errorf("Frame = %q, want %q", got, want)
	}
	for _, body := range []string{"body", ""} {
		if id, b, err := wire.Unframe(wire.Frame(nil, 1<<32-1, []byte(body))); id != 1<<32-1 || string(b) != body || err != nil {
			t.Errorf("Unframe of a framed %q = %d, %q, %v", body, id, b, err)
		}
	}
	for _, value := range []string{"", "\x00\x00\x00\x00", "\x01\x00\x00\x00\x01body", "{\"json\": 1}"} {
		if _, _, err := wire.Unframe([]byte(value)); !errors.Is(err, wire.ErrPoison) {
			t.Errorf("Unframe(%q) = %v, want %v", value, err, wire.ErrPoison)
		}
	}
	if _, _, err := wire.Unframe(nil); !errors.Is(err, wire.ErrPoison) {
		t.Errorf("Unframe of a tombstone = %v, want %v", err, wire.ErrPoison)
	}
}

// TestFieldError guarantees that a field's fault is poison and says its name.
func TestFieldError(t *testing.T) {
	t.Parallel()

	var err error = &wire.FieldError{Field: "rule.limit", Problem: "is -1, want 0 to 5"}
	if !errors.Is(err, wire.ErrPoison) || err.Error() != "rule.limit: is -1, want 0 to 5" {
		t.Errorf("%v", err)
	}
	if !errors.Is(wire.ErrUnknownID, wire.ErrPoison) || errors.Is(wire.ErrSkip, wire.ErrPoison) || errors.Is(wire.ErrSetAside, wire.ErrPoison) {
		t.Error("an unknown id is poison, a record to skip or to set aside is not")
	}
}

// A registry has the schemas of one subject, and counts what it is asked.
type registry struct {
	mu       sync.Mutex
	texts    map[uint32]string
	subjects []string
	err      error
	delay    time.Duration
	asked    atomic.Int32
}

func (r *registry) Schema(ctx context.Context, id uint32) (string, []string, error) {
	r.asked.Add(1)
	if err := r.wait(ctx); err != nil {
		return "", nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.texts[id], r.subjects, r.err
}

func (r *registry) Register(ctx context.Context, subject, schema string) (uint32, error) {
	r.asked.Add(1)
	if err := r.wait(ctx); err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return 0, r.err
	}
	return uint32(len(subject)*100 + len(schema)), nil
}

func (r *registry) wait(ctx context.Context) error {
	if r.delay == 0 {
		return nil
	}
	select {
	case <-time.After(r.delay):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func newRegistry() *registry {
	return &registry{texts: map[uint32]string{7: `"long"`, 8: `"int"`}, subjects: []string{"other-value", "t-value"}}
}

// TestIDsAreRemembered guarantees that a schema of the subject is asked for
// once.
func TestIDsAreRemembered(t *testing.T) {
	t.Parallel()

	r := newRegistry()
	ids := wire.NewIDs(r, "t-value")
	for range 3 {
		if text, err := ids.Schema(t.Context(), 7); text != `"long"` || err != nil {
			t.Fatalf("Schema(7) = %s, %v", text, err)
		}
	}
	if n := r.asked.Load(); n != 1 {
		t.Errorf("the registry was asked %d times, want once", n)
	}
}

// TestUnknownIDs guarantees that an id which is not the subject's is poison, is
// asked for once a minute however often records name it, and is read once it is
// registered.
func TestUnknownIDs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry()
		ids := wire.NewIDs(r, "t-value")
		ask := func(want error, asked int32) {
			t.Helper()
			if _, err := ids.Schema(t.Context(), 9); !errors.Is(err, want) {
				t.Errorf("Schema(9) = %v, want %v", err, want)
			}
			if n := r.asked.Load(); n != asked {
				t.Errorf("the registry was asked %d times, want %d", n, asked)
			}
		}
		ask(wire.ErrUnknownID, 1)
		r.mu.Lock()
		r.texts[9] = `"long"`
		r.mu.Unlock()
		time.Sleep(time.Minute - time.Nanosecond)
		ask(wire.ErrUnknownID, 1)
		time.Sleep(time.Nanosecond)
		ask(nil, 2)
		time.Sleep(time.Hour)
		ask(nil, 2)
	})
}

// TestForeignIDs guarantees that another subject's schema is as good as none: a
// record may not choose what it is read with.
func TestForeignIDs(t *testing.T) {
	t.Parallel()

	ids := wire.NewIDs(newRegistry(), "third-value")
	if _, err := ids.Schema(t.Context(), 7); !errors.Is(err, wire.ErrUnknownID) || !errors.Is(err, wire.ErrPoison) {
		t.Errorf("Schema(7) = %v, want %v", err, wire.ErrUnknownID)
	}
}

// TestManyUnknownIDs guarantees that a flood of ids which do not exist takes
// bounded memory: only the last thousand are remembered, and what is known is
// not forgotten for them.
func TestManyUnknownIDs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry()
		ids := wire.NewIDs(r, "t-value")
		if _, err := ids.Schema(t.Context(), 7); err != nil {
			t.Fatal(err)
		}
		for id := range uint32(3000) {
			_, _ = ids.Schema(t.Context(), 100+id)
			time.Sleep(time.Microsecond)
		}
		if n := r.asked.Load(); n != 3001 {
			t.Fatalf("the registry was asked %d times, want 3001", n)
		}
		remembered := 0
		for id := uint32(3099); id >= 100; id-- { // the newest first, for asking makes one more to remember
			before := r.asked.Load()
			if _, err := ids.Schema(t.Context(), id); !errors.Is(err, wire.ErrUnknownID) {
				t.Fatal(err)
			}
			if r.asked.Load() > before {
				break
			}
			remembered++
		}
		if remembered != 1024 {
			t.Errorf("%d ids were remembered, want 1024", remembered)
		}
		if _, err := ids.Schema(t.Context(), 7); err != nil {
			t.Error(err)
		}
	})
}

// TestRegistryAway guarantees that a registry which does not answer makes no
// record poison: the error is its own, nothing is remembered, and the next try
// asks again.
func TestRegistryAway(t *testing.T) {
	t.Parallel()

	r := newRegistry()
	r.err = errors.New("connection refused")
	ids := wire.NewIDs(r, "t-value")
	for range 2 {
		if _, err := ids.Schema(t.Context(), 7); !errors.Is(err, r.err) || errors.Is(err, wire.ErrPoison) {
			t.Errorf("Schema(7) = %v, want %v", err, r.err)
		}
	}
	r.err = nil
	if text, err := ids.Schema(t.Context(), 7); text != `"long"` || err != nil {
		t.Errorf("Schema(7) = %s, %v once it is back", text, err)
	}
}

type missing struct{}

func (missing) Error() string  { return "404" }
func (missing) NotFound() bool { return true }

// TestRegistryNotFound guarantees that a registry may also say by an error that
// it does not have an id.
func TestRegistryNotFound(t *testing.T) {
	t.Parallel()

	r := newRegistry()
	r.err = fmt.Errorf("get schema: %w", missing{})
	ids := wire.NewIDs(r, "t-value")
	for range 2 {
		if _, err := ids.Schema(t.Context(), 9); !errors.Is(err, wire.ErrUnknownID) {
			t.Errorf("Schema(9) = %v, want %v", err, wire.ErrUnknownID)
		}
	}
	if n := r.asked.Load(); n != 1 {
		t.Errorf("the registry was asked %d times, want once", n)
	}
}

// TestSharedQuestion guarantees that callers who wait for one id wait for one
// look-up, and that one who gives up takes nobody along.
func TestSharedQuestion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry()
		r.delay = 10 * time.Second
		ids := wire.NewIDs(r, "t-value")
		var wg sync.WaitGroup
		ask := func(patience time.Duration, want error) {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if _, err := ids.Schema(ctx, 7); !errors.Is(err, want) {
					t.Errorf("with %v of patience: %v, want %v", patience, err, want)
				}
			})
			synctest.Wait()
		}
		ask(5*time.Second, context.DeadlineExceeded) // asks, and gives up
		ask(2*time.Second, context.DeadlineExceeded) // waits, and gives up before
		for range 20 {
			ask(time.Minute, nil)
		}
		wg.Wait()
		if n := r.asked.Load(); n != 2 {
			t.Errorf("the registry was asked %d times, want twice: by who gave up and by one of the rest", n)
		}
	})
}

// TestSnapshot guarantees that what is known can be carried into the next life,
// where it is read without a registry.
func TestSnapshot(t *testing.T) {
	t.Parallel()

	ids := wire.NewIDs(newRegistry(), "t-value")
	for _, id := range []uint32{7, 8, 9} {
		_, _ = ids.Schema(t.Context(), id)
	}
	known := ids.Known()
	if len(known) != 2 || known[7] != `"long"` || known[8] != `"int"` {
		t.Errorf("Known = %v, want 7 and 8", known)
	}
	r := newRegistry()
	r.err = errors.New("away")
	next := wire.NewIDs(r, "t-value")
	next.Seed(known)
	known[7] = "changed" // a copy, as Known's own
	if text, err := next.Schema(t.Context(), 7); text != `"long"` || err != nil || r.asked.Load() != 0 {
		t.Errorf("Schema(7) = %s, %v after %d questions", text, err, r.asked.Load())
	}
}

// TestSeedOfUnknown guarantees that a schema which was looked up in vain is read
// at once when it is seeded.
func TestSeedOfUnknown(t *testing.T) {
	t.Parallel()

	ids := wire.NewIDs(newRegistry(), "t-value")
	_, _ = ids.Schema(t.Context(), 9)
	ids.Seed(map[uint32]string{9: `"bytes"`})
	if text, err := ids.Schema(t.Context(), 9); text != `"bytes"` || err != nil {
		t.Errorf("Schema(9) = %s, %v", text, err)
	}
}

// TestWriter guarantees that a schema is registered once for all callers, that a
// failure is not remembered, and that values are framed with the id.
func TestWriter(t *testing.T) {
	t.Parallel()

	r := newRegistry()
	r.err = errors.New("away")
	w := wire.NewWriter(r, "t-value", `"long"`)
	if _, err := w.Frame(t.Context(), nil); !errors.Is(err, r.err) || errors.Is(err, wire.ErrPoison) {
		t.Errorf("registry away: %v, want %v", err, r.err)
	}
	r.err = nil
	r.asked.Store(0)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			value, err := w.Frame(t.Context(), []byte("b"))
			if want := wire.Frame(nil, 706, []byte("b")); err != nil || !bytes.Equal(value, want) {
				t.Errorf("Frame = %q, %v, want %q", value, err, want)
			}
		})
	}
	wg.Wait()
	if n := r.asked.Load(); n != 1 {
		t.Errorf("the registry was asked %d times, want once", n)
	}
}

// TestWriterWaits guarantees that a caller who gives up while another registers
// gets its own context's error, and the other its id.
func TestWriterWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry()
		r.delay = time.Minute
		w := wire.NewWriter(r, "t-value", `"long"`)
		var wg sync.WaitGroup
		wg.Go(func() {
			if id, err := w.ID(t.Context()); id != 706 || err != nil {
				t.Errorf("ID = %d, %v", id, err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := w.ID(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("impatient: %v, want %v", err, context.DeadlineExceeded)
		}
		wg.Wait()
	})
}

// TestWriterSeed guarantees that a writer starts without the registry on an id
// of an earlier life, and only if its schema is still the same.
func TestWriterSeed(t *testing.T) {
	t.Parallel()

	r := newRegistry()
	r.err = errors.New("away")
	old := wire.NewWriter(r, "t-value", `"long"`)
	same := wire.NewWriter(r, "t-value", `"long"`)
	if !same.Seed(old.Fingerprint(), 42) {
		t.Error("Seed of the same schema = false")
	}
	if id, err := same.ID(t.Context()); id != 42 || err != nil {
		t.Errorf("ID = %d, %v, want 42", id, err)
	}
	changed := wire.NewWriter(r, "t-value", `"int"`)
	if changed.Seed(old.Fingerprint(), 42) {
		t.Error("Seed of another schema = true")
	}
	if id, err := changed.ID(t.Context()); !errors.Is(err, r.err) {
		t.Errorf("ID = %d, %v, want %v", id, err, r.err)
	}
}
