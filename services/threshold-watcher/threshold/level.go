package threshold

import (
	"cmp"
	"math/bits"
)

// Unlimited is the limit of a counter that has none: 2^53-1.
const Unlimited = 1<<53 - 1

// A Level is a mark on the way to a limit. Levels are comparable.
type Level struct {
	sort sort
	n    int64
}

// A sort says how a Level is counted. They stand in the order in which levels at
// the same place are announced.
type sort uint8

const (
	percent   sort = 1 + iota // n per cent of the limit are used
	left                      // n units are left
	full                      // all of the limit is used
	overdraft                 // more than the limit is used; of wallets only
)

// Percent is the level of n per cent, 1-100, of a limit.
func Percent(n int32) Level {
	if n == 100 {
		return Level{full, 100}
	}
	return Level{percent, int64(n)}
}

// Left is the level at which n units are left, from 0.
func Left(n int64) Level { return Level{left, n} }

// Overdraft is the level below a balance of 0.
func Overdraft() Level { return Level{sort: overdraft} }

// Percent returns the per cent of a level that is counted so.
func (l Level) Percent() (int32, bool) { return int32(l.n), l.sort == percent || l.sort == full }

// Left returns the units of a level that is counted so.
func (l Level) Left() (int64, bool) { return l.n, l.sort == left }

// Reached reports whether used units of a limit reach the level. Neither may be
// negative. It is exact for all of them.
func (l Level) Reached(used, limit int64) bool {
	switch l.sort {
	case left:
		return used >= limit || limit-used <= l.n
	case overdraft:
		return used > limit
	case percent, full:
	}
	uh, ul := bits.Mul64(uint64(used), 100)
	lh, ll := bits.Mul64(uint64(limit), uint64(l.n))
	return uh > lh || uh == lh && ul >= ll // used·100 >= limit·n
}

// below reports whether used units of a limit are so few that the level may be
// reached again. An overdraft ends with a balance above 0: at 0 nothing passes.
func (l Level) below(used, limit int64) bool {
	if l.sort == overdraft {
		return used < limit
	}
	return !l.Reached(used, limit)
}

// point is the least use of a limit that reaches the level; of an overdraft, the
// greatest that does not.
func (l Level) point(limit int64) int64 {
	switch l.sort {
	case left:
		return max(0, limit-l.n)
	case overdraft:
		return limit
	case percent, full:
	}
	hi, lo := bits.Mul64(uint64(limit), uint64(l.n))
	lo, carry := bits.Add64(lo, 99, 0)
	q, _ := bits.Div64(hi+carry, lo, 100)
	return int64(q)
}

// ascending orders levels by the use that reaches them.
func ascending(limit int64) func(a, b Level) int {
	return func(a, b Level) int {
		return cmp.Or(cmp.Compare(a.point(limit), b.point(limit)), cmp.Compare(a.sort, b.sort), cmp.Compare(a.n, b.n))
	}
}
