package metering_test

import (
	"errors"
	"math"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.dev/services/billing/metering"
)

var noon = time.Date(2026, 6, 15, 12, 0, 0, 0, time.UTC)

func quota(meter string, units int64) metering.Counter {
	return metering.Counter{
		Key: "q:" + meter, Meter: meter, Enforced: true, Observed: true, Units: units,
		Start: time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC), End: time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC),
	}
}

func prepaid(meter string, units int64) metering.Counter {
	return metering.Counter{Key: "w:" + meter, Meter: meter, Wallet: true, Enforced: true, Observed: true, Units: units}
}

// TestCounts guarantees what each kind of event adds to which meter, once.
func TestCounts(t *testing.T) {
	t.Parallel()
	shadow, away := quota("api-calls", 5), prepaid("credits", 4)
	shadow.Enforced, away.Observed = false, false
	renewable := prepaid("credits", 4)
	renewable.Start, renewable.End = quota("", 0).Start, quota("", 0).End
	small := quota("api-calls", 1)
	small.Key = "daily"
	for _, tt := range []struct {
		name     string
		verdict  metering.Verdict
		cost     int64
		counters []metering.Counter
		want     []metering.Metered
	}{
		{"a call without a counter", metering.Allow, 3, nil, []metering.Metered{{"api-calls", metering.Count{Calls: 1, Units: 3}}}},
		{"a month and a day count one call", metering.Allow, 2, []metering.Counter{quota("api-calls", 2), quota("api-calls", 2)}, []metering.Metered{{"api-calls", metering.Count{Calls: 1, Units: 2}}}},
		{"the largest charge of a meter", metering.Allow, 9, []metering.Counter{small, quota("api-calls", 7)}, []metering.Metered{{"api-calls", metering.Count{Calls: 1, Units: 7}}}},
		{"a shadow rule counts nothing, the call does", metering.ShadowDeny, 2, []metering.Counter{shadow}, []metering.Metered{{"api-calls", metering.Count{Calls: 1, Units: 2}}}},
		{"another meter beside the call", metering.Allow, 2, []metering.Counter{quota("exports", 20)}, []metering.Metered{{"exports", metering.Count{Calls: 1, Units: 20}}, {"api-calls", metering.Count{Calls: 1, Units: 2}}}},
		{"what a wallet paid", metering.Allow, 4, []metering.Counter{prepaid("credits", 4), quota("api-calls", 4)}, []metering.Metered{{"credits", metering.Count{Calls: 1, Units: 4, Prepaid: 4}}, {"api-calls", metering.Count{Calls: 1, Units: 4}}}},
		{"a renewable wallet was topped up by nobody", metering.Allow, 4, []metering.Counter{renewable, quota("api-calls", 4)}, []metering.Metered{{"credits", metering.Count{Calls: 1, Units: 4}}, {"api-calls", metering.Count{Calls: 1, Units: 4}}}},
		{"a pass that nobody could check", metering.DegradedAllow, 4, []metering.Counter{away}, []metering.Metered{{"credits", metering.Count{Calls: 1, Units: 4, Degraded: 4}}, {"api-calls", metering.Count{Calls: 1, Units: 4, Degraded: 4}}}},
		{"a refusal", metering.Deny, 4, []metering.Counter{quota("api-calls", 0)}, nil},
		{"a refusal that nobody could check", metering.DegradedDeny, 4, nil, nil},
		{"a block", metering.Blocked, 4, nil, nil},
		{"a refund", metering.Refund, 4, []metering.Counter{quota("api-calls", -4)}, []metering.Metered{{"api-calls", metering.Count{Returned: 4}}}},
		{"a refund of a call without a counter", metering.Refund, 4, nil, []metering.Metered{{"api-calls", metering.Count{Returned: 4}}}},
		{"a refund to a wallet", metering.Refund, 4, []metering.Counter{prepaid("credits", -4), quota("api-calls", -4)}, []metering.Metered{{"credits", metering.Count{Returned: 4, Prepaid: -4}}, {"api-calls", metering.Count{Returned: 4}}}},
		{"a settlement that is dearer", metering.Settle, 9, []metering.Counter{quota("api-calls", 5)}, []metering.Metered{{"api-calls", metering.Count{Units: 5}}}},
		{"a settlement that is cheaper", metering.Settle, 1, []metering.Counter{quota("api-calls", -3)}, []metering.Metered{{"api-calls", metering.Count{Returned: 3}}}},
		{"a settlement that nobody can price", metering.Settle, 9, nil, []metering.Metered{{"api-calls", metering.Count{Unpriced: 1}}}},
		{"an outcome that is newer", "LATER", 9, []metering.Counter{quota("exports", 2)}, []metering.Metered{{"exports", metering.Count{Units: 2}}}},
	} {
		e := metering.Event{Verdict: tt.verdict, Cost: tt.cost, Counters: tt.counters, At: noon}
		if got := e.Counts(); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: counts %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// TestWhen guarantees which instant units belong to: the decision's, of a correction that
// of the decision it corrects, kept within the period that the store charged.
func TestWhen(t *testing.T) {
	t.Parallel()
	var id metering.ID
	ms := uint64(noon.UnixMilli())
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	june := quota("api-calls", 1)
	for _, tt := range []struct {
		name string
		e    metering.Event
		want time.Time
	}{
		{"a call", metering.Event{At: noon, Verdict: metering.Allow}, noon},
		{"a refund in July of June's call", metering.Event{At: noon.AddDate(0, 1, 0), Decision: id, Verdict: metering.Refund}, noon},
		{"a clock that is ahead", metering.Event{At: june.End.Add(time.Second), Verdict: metering.Allow, Counters: []metering.Counter{june}}, june.End.Add(-time.Microsecond)},
		{"a clock that is behind", metering.Event{At: june.Start.Add(-time.Second), Verdict: metering.Allow, Counters: []metering.Counter{june}}, june.Start},
		{"a wallet has no period", metering.Event{At: noon, Verdict: metering.Allow, Counters: []metering.Counter{prepaid("credits", 1)}}, noon},
	} {
		if got := tt.e.When(); !got.Equal(tt.want) {
			t.Errorf("%s is of %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestStreams guarantees for any order of numbers, with repeats and losses: each is new
// once, and what is missing is what never came below the highest.
func TestStreams(t *testing.T) {
	t.Parallel()
	filled := 0
	rapid.Check(t, func(t *rapid.T) {
		s := metering.NewStream(metering.ID{1}, 0, 1, true)
		seen := map[int64]bool{}
		top := int64(0)
		for i, n := range rapid.SliceOfN(rapid.Int64Range(1, 40), 1, 80).Draw(t, "numbers") {
			if n < top && !seen[n] {
				filled++
			}
			if fresh := s.See(n, noon, noon.Add(time.Duration(i))); fresh == seen[n] {
				t.Fatalf("number %d is new: %v, seen before: %v", n, fresh, seen[n])
			}
			seen[n] = true
			top = max(top, n)
		}
		missing := top - int64(len(seen))
		if got := s.Missing(noon.Add(time.Hour)); got != missing || s.Next != top+1 {
			t.Fatalf("%d are missing of %+v, want %d", got, s, missing)
		}
		if got := s.Missing(noon); got != 0 {
			t.Fatalf("%d are missing before anything came", got)
		}
		for i := 1; i < len(s.Holes); i++ {
			if s.Holes[i-1].To >= s.Holes[i].From {
				t.Fatalf("holes %+v do not ascend apart", s.Holes)
			}
		}
	})
	if filled == 0 {
		t.Error("no hole was ever filled: the property was not tried")
	}
}

// TestStreamFromTheMiddle guarantees that what came before a topic's remaining beginning
// is not missing, and counts once if it is read after all.
func TestStreamFromTheMiddle(t *testing.T) {
	t.Parallel()
	s := metering.NewStream(metering.ID{1}, 0, 500, false)
	if !s.See(500, noon, noon) || !s.See(502, noon, noon) || s.Missing(noon.Add(time.Hour)) != 1 {
		t.Errorf("stream %+v", s)
	}
	for _, earlier := range []int64{499, 1, 250} { // the topic is read from before
		if !s.See(earlier, noon, noon) || s.See(earlier, noon, noon) || s.Missing(noon.Add(time.Hour)) != 1 {
			t.Errorf("after %d, which came before counting began, the stream is %+v", earlier, s)
		}
	}
}

// everywhere is a calendar of June, which is final or not.
type everywhere struct{ final bool }

func (everywhere) Day(_ string, at time.Time) (time.Time, error) {
	return at.Truncate(24 * time.Hour), nil
}

func (c everywhere) Place(_ string, at time.Time) (metering.Place, error) {
	p := metering.Place{Day: at.Truncate(24 * time.Hour), Period: quota("", 0).Start, Into: quota("", 0).Start}
	if c.final {
		p.Into = quota("", 0).End
	}
	return p, nil
}

func (everywhere) Open(string) (time.Time, error) { return quota("", 0).End, nil }

// TestBatch guarantees where events end up: their own period, a later invoice, set aside,
// or among the cuts; and that anonymous ones are nobody's.
func TestBatch(t *testing.T) {
	t.Parallel()
	event := func(v metering.Verdict, age time.Duration) *metering.Event {
		return &metering.Event{Tenant: "acme", Verdict: v, Cost: 2, Status: 429, At: noon, Decision: metering.ID{}, Arrived: noon.Add(age), Algorithm: "quota", Rule: "r"}
	}
	late := event(metering.Allow, 35*24*time.Hour)
	tooLate := event(metering.Allow, 35*24*time.Hour+time.Second)
	ahead := event(metering.Allow, -25*time.Hour)
	nobody := event(metering.Allow, 0)
	nobody.Tenant = ""
	for _, final := range []bool{false, true} {
		b := metering.NewBatch()
		for _, e := range []*metering.Event{event(metering.Allow, 0), late, tooLate, ahead, nobody, event(metering.Deny, 0), event(metering.DegradedDeny, 0)} {
			if err := b.Add(e, everywhere{final}); err != nil {
				t.Fatal(err)
			}
		}
		want := metering.InPeriod
		if final {
			want = metering.LateCall
		}
		for k, c := range b.Usage {
			if len(b.Usage) != 1 || k.Kind != want || c.Calls != 2 || c.Units != 4 {
				t.Errorf("final %v: usage %+v %+v", final, k, c)
			}
		}
		for k, c := range b.Aside {
			if len(b.Aside) != 1 || c.Units != 4 || !k.Into.Equal(quota("", 0).End) {
				t.Errorf("final %v: set aside %+v %+v", final, k, c)
			}
		}
		reasons := map[string]int64{}
		for k, c := range b.Cuts {
			reasons[k.Reason] += c.Calls
		}
		if !reflect.DeepEqual(reasons, map[string]int64{"quota-exceeded": 1, "store-unavailable": 1}) || b.Billable != 4 {
			t.Errorf("final %v: cuts %v, %d billable", final, reasons, b.Billable)
		}
	}
}

// TestBatchHolds guarantees that calls that were refused for numbers without measure do not
// turn a sum over, and that units that were sold and fit no sum are an error.
func TestBatchHolds(t *testing.T) {
	t.Parallel()
	for verdict, want := range map[metering.Verdict]error{metering.Deny: nil, metering.Allow: metering.ErrTooMany} {
		b := metering.NewBatch()
		var err error
		for i := 0; i < 2560 && err == nil; i++ {
			err = b.Add(&metering.Event{Tenant: "acme", Verdict: verdict, Cost: 1<<53 - 1, At: noon, Arrived: noon}, everywhere{})
		}
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", verdict, err, want)
		}
		for _, c := range b.Cuts {
			if c.Calls != 2560 || c.Units != math.MaxInt64 {
				t.Errorf("cuts %+v", c)
			}
		}
	}
}
