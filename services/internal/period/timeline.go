package period

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"
)

// A Former is a definition that was in force. The period that was running at
// Until under Spec ends as it was promised; End is that end when it is known,
// and otherwise it is derived from Until.
type Former struct {
	Spec  Spec
	Until time.Time // instant of the change
	End   time.Time // zero: the end of the period that contains Until
}

// A Timeline is a definition with those that were in force before it.
type Timeline struct {
	Former  []Former // in any order; they are taken by Until
	Current Spec
}

// A Running is a period with the unit and count it was promised under, which
// are the former definition's until that period has ended.
type Running struct {
	Span
	Unit  Unit
	Count int
}

// At is the span of Running.
func (l Timeline) At(t time.Time) (Span, error) {
	r, err := l.Running(t)
	return r.Span, err
}

// Running returns the period that contains t. The error wraps ErrSpec.
//
// A change while a period runs is felt at its end: the running period ends as
// promised, and the next begins there, however short that makes it. A former
// definition that was replaced before the period that was running when it was
// made had ended never came into force, and is skipped.
func (l Timeline) Running(t time.Time) (Running, error) {
	former := l.Former
	if !slices.IsSortedFunc(former, earlier) {
		former = slices.SortedStableFunc(slices.Values(former), earlier)
	}
	var from time.Time // when the definition at hand came into force; zero: always was
	for _, f := range former {
		if !from.IsZero() && f.Until.Before(from) {
			continue
		}
		end := f.End
		if end.IsZero() {
			running, err := f.Spec.At(f.Until)
			if err != nil {
				return Running{}, err
			}
			end = running.End
		}
		if t.Before(end) {
			span, err := f.Spec.At(t)
			if span.End.After(end) {
				span.End = end.UTC()
			}
			return Running{span.since(from), f.Spec.Unit, f.Spec.Count}, err
		}
		from = end
	}
	span, err := l.Current.At(t)
	return Running{span.since(from), l.Current.Unit, l.Current.Count}, err
}

// since is the span without what lies before from.
func (s Span) since(from time.Time) Span {
	if !from.IsZero() && s.Start.Before(from) {
		s.Start = from.UTC()
	}
	return s
}

func earlier(a, b Former) int { return cmp.Compare(a.Until.UnixMicro(), b.Until.UnixMicro()) }

// A Memo is a Timeline that remembers its last answer, for a hot path. It is
// safe for concurrent use and must not be copied.
type Memo struct {
	line Timeline
	last atomic.Pointer[Running]
}

// NewMemo returns a Memo of l, which must not change any more.
func NewMemo(l Timeline) *Memo { return &Memo{line: l} }

// At is the span of Running.
func (m *Memo) At(t time.Time) (Span, error) {
	r, err := m.Running(t)
	return r.Span, err
}

// Running is the Timeline's.
func (m *Memo) Running(t time.Time) (Running, error) {
	if last := m.last.Load(); last != nil && last.Contains(t) {
		return *last, nil
	}
	r, err := m.line.Running(t)
	if err == nil {
		m.last.Store(&r)
	}
	return r, err
}
