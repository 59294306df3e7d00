package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog"
	"penstock.dev/services/rule-admin/ledger"
	"penstock.dev/services/rule-admin/ledger/ledgertest"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var errAway = errors.New("away")

// A desk is a ledger in memory.
type desk struct {
	*ledger.Ledger
	books    *ledgertest.Memory
	counters *ledgertest.Counters
	warnings []string
}

func newDesk(now time.Time) *desk {
	d := &desk{books: ledgertest.NewMemory(now, "acme"), counters: ledgertest.NewCounters()}
	d.Ledger = ledger.New(d.books, d.counters, func(message string, err error) { d.warnings = append(d.warnings, message+": "+err.Error()) })
	return d
}

// ask is a request of acme for its credits.
func ask(key string, units int64, change func(*ledger.Request)) ledger.Request {
	r := ledger.Request{
		Tenant: "acme", Key: key, Meter: "credits", Units: units, ID: "id-" + key, Caller: catalog.Caller{Actor: "ops", Role: "admin"}, RequestID: "r-1",
	}
	if change != nil {
		change(&r)
	}
	return r
}

func (d *desk) topUp(t *testing.T, r ledger.Request) ledger.TopUp {
	t.Helper()
	made, replayed, err := d.TopUp(t.Context(), r)
	if err != nil || replayed {
		t.Fatalf("TopUp(%+v) = %+v, %v, %v", r, made, replayed, err)
	}
	return made
}

// list returns acme's top-ups by key.
func (d *desk) list(t *testing.T) map[string]ledger.TopUp {
	t.Helper()
	all, err := d.List(t.Context(), "acme", 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]ledger.TopUp{}
	for _, u := range all {
		out[strings.TrimPrefix(u.ID, "id-")] = u
	}
	return out
}

func faultsOf(err error) []string {
	var f *catalog.FaultError
	if !errors.As(err, &f) {
		return nil
	}
	var fields []string
	for _, fault := range f.Faults {
		fields = append(fields, fault.Field)
	}
	return fields
}

// TestW5BurnOrder guarantees the order in which top-ups are spent: by priority,
// the lower number first, then by the earlier expiry, then the older; and that
// what is given back goes the other way.
func TestW5BurnOrder(t *testing.T) {
	t.Parallel()
	d := newDesk(t0)
	day := func(month time.Month, day int) func(*ledger.Request) {
		return func(r *ledger.Request) {
			r.Priority, r.ExpiresAt = 50, time.Date(2026, month, day, 0, 0, 0, 0, time.UTC)
		}
	}
	d.topUp(t, ask("A", 100, day(4, 1)))
	d.topUp(t, ask("B", 40, day(3, 15)))
	d.topUp(t, ask("C", 30, func(r *ledger.Request) { r.Priority = 10 }))
	left := func(what, want string) {
		t.Helper()
		all := d.list(t)
		got := ""
		for _, key := range []string{"A", "B", "C", "D"} {
			got += fmt.Sprintf("%s %d ", key, all[key].Units-all[key].Spent)
		}
		if strings.TrimSpace(got) != want {
			t.Errorf("%s: left are %s, want %s", what, got, want)
		}
	}
	d.counters.Set("acme", "credits", limit.Totals{Consumed: 60})
	d.topUp(t, ask("D", 1, func(r *ledger.Request) { r.Priority = -1 }))
	left("60 burnt", "A 100 B 10 C 0 D 1")
	d.counters.Set("acme", "credits", limit.Totals{Consumed: 60, Refunded: 35})
	d.topUp(t, ask("E", 1, nil))
	left("35 given back", "A 100 B 40 C 5 D 1")
	d.counters.Set("acme", "credits", limit.Totals{Consumed: 66, Refunded: 35})
	d.topUp(t, ask("F", 1, nil))
	left("6 burnt: D, E, then C", "A 100 B 40 C 1 D 0")
}

// TestTopUpOnce guarantees that a key makes one top-up, that its first answer
// never changes, and that another body under it is refused by the key's name.
func TestTopUpOnce(t *testing.T) {
	t.Parallel()
	d := newDesk(t0)
	first := d.topUp(t, ask("k", 100, nil))
	d.topUp(t, ask("l", 50, nil))
	d.books.Advance(90 * 24 * time.Hour)
	again, replayed, err := d.TopUp(t.Context(), ask("k", 100, func(r *ledger.Request) { r.ID, r.RequestID = "another", "r-2" }))
	if err != nil || !replayed || again != first || again.GrantedTotal != 100 {
		t.Errorf("the same again = %+v, %v, %v, want %+v", again, replayed, err, first)
	}
	for name, change := range map[string]func(*ledger.Request){
		"units": func(r *ledger.Request) { r.Units = 200 }, "meter": func(r *ledger.Request) { r.Meter = "tokens" },
		"priority": func(r *ledger.Request) { r.Priority = 1 }, "reason": func(r *ledger.Request) { r.Reason = "x" },
		"expires_at": func(r *ledger.Request) { r.ExpiresAt = t0.AddDate(1, 0, 0) },
	} {
		_, _, err := d.TopUp(t.Context(), ask("k", 100, change))
		if !errors.Is(err, catalog.ErrInvalid) || !slices.Equal(faultsOf(err), []string{"Idempotency-Key"}) {
			t.Errorf("another %s: %v, want the key named", name, err)
		}
	}
	if n, w := len(d.books.Entries()), d.books.Wallet("acme", "credits"); n != 2 || w.Granted != 150 {
		t.Errorf("%d entries and %d granted, want 2 and 150", n, w.Granted)
	}
}

// hasty books find nothing when nobody has a turn.
type hasty struct{ *ledgertest.Memory }

func (hasty) TopUp(context.Context, string, string) (*ledger.TopUp, []byte, error) {
	return nil, nil, nil
}

// TestTopUpOnceInItsTurn guarantees that a call which looked too early, without a
// lock, is answered by the books all the same.
func TestTopUpOnceInItsTurn(t *testing.T) {
	t.Parallel()
	books := ledgertest.NewMemory(t0, "acme")
	l := ledger.New(hasty{books}, nil, nil)
	first, replayed, err := l.TopUp(t.Context(), ask("k", 100, nil))
	if err != nil || replayed {
		t.Fatal(replayed, err)
	}
	if again, replayed, err := l.TopUp(t.Context(), ask("k", 100, func(r *ledger.Request) { r.ID = "another" })); err != nil || !replayed || again != first {
		t.Errorf("again %+v, %v, %v, want %+v", again, replayed, err, first)
	}
	if _, _, err := l.TopUp(t.Context(), ask("k", 101, nil)); !slices.Equal(faultsOf(err), []string{"Idempotency-Key"}) {
		t.Errorf("another body: %v, want the key named", err)
	}
	if n := len(books.Entries()); n != 1 {
		t.Errorf("%d entries, want one", n)
	}
}

// TestTopUpRefused guarantees what no top-up is made for, and that each refusal
// names its field.
func TestTopUpRefused(t *testing.T) {
	t.Parallel()
	d := newDesk(t0)
	d.topUp(t, ask("most", rule.Unlimited-5, nil))
	d.books.Renew("acme", "monthly")
	tests := []struct {
		name   string
		change func(*ledger.Request)
		err    error
		fields []string
	}{
		{"a meter that only renewable wallets sell", func(r *ledger.Request) { r.Meter = "monthly" }, catalog.ErrInvalid, []string{"meter"}},
		{"more than can be counted in all", func(r *ledger.Request) { r.Units = 6 }, catalog.ErrInvalid, []string{"units"}},
		{"an end that is now", func(r *ledger.Request) { r.ExpiresAt = t0 }, catalog.ErrInvalid, []string{"expires_at"}},
		{"both", func(r *ledger.Request) { r.Units, r.ExpiresAt = 6, t0 }, catalog.ErrInvalid, []string{"units", "expires_at"}},
		{"a tenant that is not there", func(r *ledger.Request) { r.Tenant = "nobody" }, catalog.ErrNotFound, nil},
		{"a tenant that cannot be", func(r *ledger.Request) { r.Tenant = "no/body" }, catalog.ErrNotFound, nil},
	}
	for _, tt := range tests {
		_, _, err := d.TopUp(t.Context(), ask("k", 1, tt.change))
		if !errors.Is(err, tt.err) || !slices.Equal(faultsOf(err), tt.fields) {
			t.Errorf("%s: %v, want %v of %q", tt.name, err, tt.err, tt.fields)
		}
	}
	if n := len(d.books.Entries()); n != 1 {
		t.Errorf("%d entries, want the first alone", n)
	}
	d.topUp(t, ask("k", 5, func(r *ledger.Request) { r.ExpiresAt = t0.Add(time.Microsecond) }))

	bare := ledger.New(d.books, nil, nil)
	_, _, err := bare.TopUp(t.Context(), ask("x", 1, func(r *ledger.Request) { r.Meter, r.ExpiresAt = "tokens", t0.Add(time.Hour) }))
	if !slices.Equal(faultsOf(err), []string{"expires_at"}) || !strings.Contains(err.Error(), "-redis-url") {
		t.Errorf("an expiry that nobody could keep: %v, want the knob named", err)
	}
}

// TestRead guarantees what a top-up may say, and that every fault is named.
func TestRead(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		text   string
		err    error
		fields []string
	}{
		{"the least", `{"meter":"credits","units":1}`, nil, nil},
		{"the most", `{"meter":"credits","units":9007199254740991,"priority":-1000000,"expires_at":"2026-12-01T00:00:00Z","reason":"x"}`, nil, nil},
		{"nothing", `{}`, catalog.ErrInvalid, []string{"meter", "units"}},
		{"no units", `{"meter":"credits","units":0}`, catalog.ErrInvalid, []string{"units"}},
		{"fewer than none", `{"meter":"credits","units":-5}`, catalog.ErrInvalid, []string{"units"}},
		{"2^53", `{"meter":"credits","units":9007199254740992}`, catalog.ErrInvalid, []string{"units"}},
		{"a meter in capitals", `{"meter":"Credits","units":1}`, catalog.ErrInvalid, []string{"meter"}},
		{"a priority beyond", `{"meter":"credits","units":1,"priority":1000001}`, catalog.ErrInvalid, []string{"priority"}},
		{"an end that is no time", `{"meter":"credits","units":1,"expires_at":"soon"}`, catalog.ErrInvalid, []string{"expires_at"}},
		{"a reason without end", `{"meter":"credits","units":1,"reason":"` + strings.Repeat("x", 257) + `"}`, catalog.ErrInvalid, []string{"reason"}},
		{"text for units", `{"meter":"credits","units":"1"}`, catalog.ErrMalformed, []string{"units"}},
		{"a fraction", `{"meter":"credits","units":1.5}`, catalog.ErrMalformed, []string{"units"}},
		{"an unknown field", `{"meter":"credits","units":1,"total":5}`, catalog.ErrMalformed, []string{"total"}},
		{"no object", `[]`, catalog.ErrMalformed, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var r ledger.Request
			if err := r.Read([]byte(tt.text)); !errors.Is(err, tt.err) || tt.err == nil && err != nil || !slices.Equal(faultsOf(err), tt.fields) {
				t.Errorf("Read = %v, want %v of %q", err, tt.err, tt.fields)
			}
		})
	}
}

// TestTopUpWithoutCounters guarantees that a counter store that is away delays
// no top-up and loses nothing: what was consumed meanwhile is spent at the next
// look.
func TestTopUpWithoutCounters(t *testing.T) {
	t.Parallel()
	d := newDesk(t0)
	d.topUp(t, ask("a", 100, nil))
	d.counters.Set("acme", "credits", limit.Totals{Consumed: 130})
	d.counters.Fail(errAway)
	d.topUp(t, ask("b", 100, nil))
	if n := len(d.warnings); n != 2 {
		t.Errorf("warned of %q, want the lock and the look", d.warnings)
	}
	d.counters.Fail(nil)
	d.counters.Doubt(errAway)
	d.topUp(t, ask("c", 100, nil))
	if w := d.books.Wallet("acme", "credits"); w.Granted != 300 || w.Consumed != 0 {
		t.Errorf("wallet %+v, want 300 granted and nothing looked at", w)
	}
	d.counters.Doubt(nil)
	d.topUp(t, ask("d", 100, nil))
	all := d.list(t)
	if all["a"].Spent != 100 || all["b"].Spent != 30 || all["c"].Spent != 0 {
		t.Errorf("spent %d, %d and %d, want 100, 30 and 0", all["a"].Spent, all["b"].Spent, all["c"].Spent)
	}
}

// TestExpiryWaits guarantees that what was spent of a top-up is never guessed:
// without counters, and while nobody vouches for them, it counts on.
func TestExpiryWaits(t *testing.T) {
	t.Parallel()
	d := newDesk(t0)
	d.topUp(t, ask("a", 100, func(r *ledger.Request) { r.ExpiresAt = t0.Add(time.Hour) }))
	d.topUp(t, ask("b", 10, nil))
	d.counters.Set("acme", "credits", limit.Totals{Consumed: 40})
	expire := func(want int, wrong error) {
		t.Helper()
		if overdue, err := d.ExpireDue(t.Context()); overdue != want || !errors.Is(err, wrong) {
			t.Errorf("ExpireDue = %d, %v, want %d, %v", overdue, err, want, wrong)
		}
	}
	expire(0, nil)
	d.books.Advance(time.Hour)
	d.counters.Fail(errAway)
	expire(1, errAway)
	d.counters.Fail(nil)
	d.counters.Doubt(errAway)
	expire(1, errAway)
	if w := d.books.Wallet("acme", "credits"); w.Granted != 110 {
		t.Errorf("%d granted, want 110", w.Granted)
	}
	d.counters.Doubt(nil)
	expire(0, nil)
	expire(0, nil)
	a, w := d.list(t)["a"], d.books.Wallet("acme", "credits")
	if w.Granted != 50 || a.ExpiredUnits != 60 || !a.ExpiredAt.Equal(t0.Add(time.Hour)) || len(d.books.Entries()) != 3 {
		t.Errorf("%d granted, %+v, want the 60 unspent gone, once", w.Granted, a)
	}
	e := d.books.Entries()[2]
	if e.Caller.Role != "system" || e.Before == nil || e.Before.ExpiredUnits != 0 || e.Key != "" {
		t.Errorf("the entry of the end is %+v", e)
	}
}

// TestExpiresInTime guarantees that the loop ends a top-up within 5 s of its
// time, tells how many are overdue, and says that they are once, not each
// second.
func TestExpiresInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(time.Now())
		d.topUp(t, ask("a", 100, func(r *ledger.Request) { r.ExpiresAt = time.Now().Add(90 * time.Second) }))
		ctx, cancel := context.WithCancel(t.Context())
		overdue := -1
		ended := make(chan error)
		go func() { ended <- d.Expire(ctx, func(n int) { overdue = n }) }()
		pass := func(of time.Duration) {
			second := time.NewTicker(time.Second)
			defer second.Stop()
			for range of / time.Second {
				d.books.Advance(time.Second)
				<-second.C
			}
			synctest.Wait()
		}
		pass(89 * time.Second)
		if n := len(d.books.Entries()); n != 1 || overdue != 0 {
			t.Errorf("a second before: %d entries, %d overdue", n, overdue)
		}
		d.counters.Fail(errAway)
		pass(10 * time.Second)
		if n := len(d.books.Entries()); n != 1 || overdue != 1 || len(d.warnings) != 1 {
			t.Errorf("without counters: %d entries, %d overdue, warned of %q", n, overdue, d.warnings)
		}
		d.counters.Fail(nil)
		pass(5 * time.Second)
		if n := len(d.books.Entries()); n != 2 || overdue != 0 {
			t.Errorf("with counters: %d entries, %d overdue, want the end and none", n, overdue)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Expire = %v", err)
		}
	})
}

// TestLockOfADeadCaller guarantees that a lock which nobody gives back delays a
// top-up for a second, and one whose holder makes it no longer than that takes.
func TestLockOfADeadCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t0)
		if _, held, err := d.counters.Lock(t.Context(), "topup:acme:k", 0); !held || err != nil {
			t.Fatal(held, err)
		}
		began := time.Now()
		d.topUp(t, ask("k", 100, nil))
		if took := time.Since(began); took < time.Second || took > 1100*time.Millisecond {
			t.Errorf("it took %v, want a second", took)
		}
		began = time.Now()
		if _, replayed, err := d.TopUp(t.Context(), ask("k", 100, nil)); !replayed || err != nil || time.Since(began) > 0 {
			t.Errorf("the same again: %v, %v after %v, want it at once", replayed, err, time.Since(began))
		}
	})
}

// TestShown guarantees what callers see, and that the first answer says nothing
// of what came later.
func TestShown(t *testing.T) {
	t.Parallel()
	u := &ledger.TopUp{
		ID: "id", Tenant: "acme", Meter: "credits", Units: 9, Priority: 2, ExpiresAt: t0, Reason: "order 17", GrantedTotal: 19,
		GrantedAt: t0, GrantedBy: "ops", Revision: 7, Spent: 3, ExpiredAt: t0.Add(time.Second),
	}
	show := func(u *ledger.TopUp) string {
		text, err := json.Marshal(u)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	const first = `{"topup_id":"id","tenant":"acme","meter":"credits","units":9,"granted_total":19,"priority":2,"expires_at":"2026-03-01T12:00:00Z",` +
		`"reason":"order 17","granted_at":"2026-03-01T12:00:00Z","granted_by":"ops","version":7}`
	if got := show(u.First()); got != first {
		t.Errorf("first %s, want %s", got, first)
	}
	if got, want := show(u), strings.TrimSuffix(first, "}")+`,"expired_at":"2026-03-01T12:00:01Z","expired_units":0}`; got != want {
		t.Errorf("later %s, want %s", got, want)
	}
}

// TestBooksBalance guarantees, whatever happens in whatever order, that the total
// is what was granted less what expired; that after a look what is left of all
// top-ups, less what is owed, is the balance that gateways have; that an end
// never takes what was spent; and that a key is one top-up.
func TestBooksBalance(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		d := newDesk(t0)
		now, totals := t0, limit.Totals{}
		keys, up := 0, true
		looked := false // the books are as of totals
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			balance := d.books.Wallet("acme", "credits").Granted - totals.Consumed + totals.Refunded
			switch rapid.SampledFrom([]string{"top up", "top up", "consume", "consume", "refund", "pass", "expire", "break", "again"}).Draw(rt, "what") {
			case "top up":
				keys++
				r := ask(fmt.Sprint(keys), rapid.Int64Range(1, 50).Draw(rt, "units"), nil)
				r.Priority = int32(rapid.IntRange(-1, 1).Draw(rt, "priority"))
				if rapid.Bool().Draw(rt, "expires") {
					r.ExpiresAt = now.Add(time.Duration(rapid.IntRange(1, 5).Draw(rt, "hours")) * time.Hour)
				}
				if _, replayed, err := d.TopUp(rt.Context(), r); err != nil || replayed {
					rt.Fatalf("%+v: %v, %v", r, replayed, err)
				}
				looked = looked || up
			case "again":
				if keys == 0 {
					continue
				}
				key := fmt.Sprint(rapid.IntRange(1, keys).Draw(rt, "key"))
				was := d.list(t)[key]
				r := ask(key, was.Units, func(r *ledger.Request) { r.Priority, r.ExpiresAt = was.Priority, was.ExpiresAt })
				if again, replayed, err := d.TopUp(rt.Context(), r); err != nil || !replayed || again != was {
					rt.Fatalf("again: %+v, %v, %v, want %+v", again, replayed, err, was)
				}
			case "consume":
				if balance > 0 { // or gateways refuse
					totals.Consumed += rapid.Int64Range(1, 80).Draw(rt, "units")
					looked = false
				}
			case "refund":
				totals.Refunded += rapid.Int64Range(0, totals.Consumed-totals.Refunded).Draw(rt, "units")
				looked = false
			case "pass":
				passes := time.Duration(rapid.IntRange(1, 3).Draw(rt, "hours")) * time.Hour
				d.books.Advance(passes)
				now = now.Add(passes)
			case "break":
				up = !up
				d.counters.Fail(map[bool]error{false: errAway}[up])
			case "expire":
				before := len(d.books.Entries())
				overdue, err := d.ExpireDue(rt.Context())
				if up && (overdue != 0 || err != nil) {
					rt.Fatalf("ExpireDue = %d, %v", overdue, err)
				}
				looked = looked || len(d.books.Entries()) > before
				if after := d.books.Wallet("acme", "credits").Granted - totals.Consumed + totals.Refunded; after < min(balance, 0) {
					rt.Fatalf("the end of top-ups took the balance from %d to %d", balance, after)
				}
			}
			d.counters.Set("acme", "credits", totals)
			w, granted, left := d.books.Wallet("acme", "credits"), int64(0), int64(0)
			for _, u := range d.list(t) {
				granted += u.Units - u.ExpiredUnits
				if u.ExpiredAt.IsZero() {
					left += u.Units - u.Spent
				} else if u.ExpiredAt.Before(u.ExpiresAt) || u.ExpiredUnits != u.Units-u.Spent {
					rt.Fatalf("%+v ended too early, or with what was spent", u)
				}
				if u.Spent < 0 || u.Spent > u.Units {
					rt.Fatalf("%+v", u)
				}
			}
			if w.Granted != granted {
				rt.Fatalf("%d granted, and the top-ups are %d", w.Granted, granted)
			}
			if balance := w.Granted - totals.Consumed + totals.Refunded; looked && left-w.Owed != balance {
				rt.Fatalf("%d are left and %d owed, and the balance is %d", left, w.Owed, balance)
			}
		}
	})
}

// TestTotalsThatFell guarantees that a store that lost data makes nothing
// unspent.
func TestTotalsThatFell(t *testing.T) {
	t.Parallel()
	open := []ledger.TopUp{{ID: "a", Units: 100}}
	w, changed := ledger.Settle(ledger.Wallet{Granted: 100}, open, limit.Totals{Consumed: 70, Refunded: 10})
	if open[0].Spent != 60 || len(changed) != 1 {
		t.Errorf("spent %d, changed %+v", open[0].Spent, changed)
	}
	w, changed = ledger.Settle(w, open, limit.Totals{Consumed: 5})
	if open[0].Spent != 60 || len(changed) != 0 || w.Consumed != 70 || w.Refunded != 10 {
		t.Errorf("after a loss: spent %d, changed %+v, %+v", open[0].Spent, changed, w)
	}
}
