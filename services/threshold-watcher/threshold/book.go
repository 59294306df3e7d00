package threshold

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"
)

// A Usage is one event of usage.v1: a decision, or a correction that charged more.
type Usage struct {
	Tenant       string
	Decision     [16]byte // of a correction, the one that it corrects
	At           int64    // milliseconds since 1970
	RulesVersion int64    // revision of all rules
	Correction   bool     // it is under the rules of the decision, however old they are
	Counters     []Counter
}

// A Counter is a counter after an event. Only what is enforced and was observed is
// given to a Book.
type Counter struct {
	Key         string
	Start, End  int64 // of its period, milliseconds since 1970; 0: it has none
	Meter       string
	RuleID      string
	RuleVersion int64
	Wallet      bool
	Limit       int64 // or granted total of a wallet; 0 and Unlimited announce nothing
	Consumed    int64 // never falls
	Refunded    int64 // never falls
	Percent     []int32
	Left        []int64
}

// used is what is consumed net of refunds.
func (c *Counter) used() int64 { return max(0, c.Consumed-c.Refunded) }

// A Book is what was announced of the counters of one partition. It is not safe for
// concurrent use.
type Book struct {
	keep     time.Duration
	counters map[id]*record
	undo     map[id]*record // as they were at the last Commit; nil: not there
}

// An id identifies a counter and a period: a hash, for keys may be long.
type id [16]byte

func idOf(key string, start int64) id {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 128), uint64(start))
	sum := sha256.Sum256(append(b, key...))
	return id(sum[:16])
}

// A record is what was announced of one counter in one period.
type record struct {
	end    int64
	last   rules
	levels []armed
	past   []told
}

// rules say under which rules something was decided.
type rules struct {
	rule     uint64 // hash of the rule's id
	version  int64  // of that rule
	revision int64  // of all rules
	at       int64  // milliseconds
	limit    int64
}

func rulesOf(ruleID string, version, revision, at, limit int64) rules {
	sum := sha256.Sum256([]byte(ruleID))
	return rules{binary.BigEndian.Uint64(sum[:]), version, revision, at, limit}
}

// before reports whether r are older rules than s: by the version of the rule; when
// it is another rule, or only the granted total changed, by the revision of all
// rules; and when a rule took over because its time had come, by the time.
func (r rules) before(s rules) bool {
	switch {
	case r.rule == s.rule && r.version != s.version:
		return r.version < s.version
	case r.revision != s.revision:
		return r.revision < s.revision
	default:
		return r.at < s.at
	}
}

// An armed is a level that was announced, or armed again since.
type armed struct {
	level     Level
	arm       int64
	announced bool   // in this arm
	rule      uint64 // which announced it or armed it again, like all that follow
	version   int64
	limit     int64
	used      int64
	refunded  int64
}

// A told is how often a rule announced a level by one limit, in arms that another
// rule ended.
type told struct {
	level          Level
	rule           uint64
	version, limit int64
	times          int
}

const (
	// mostTold is how often a rule announces a level by one limit where others arm it
	// again: once, and once more when its time comes back. Of rules that take turns on
	// one counter each would announce it at every turn.
	mostTold = 2
	// maxTold bounds what is remembered of that: of more the oldest is forgotten.
	maxTold = 64
)

// sum orders the states of one counter: consumed and refunded never fall, so it
// does not either, and rises whenever they change. No clock is needed.
func sum(used, refunded int64) int64 { return used + 2*refunded }

// NewBook returns a Book of nothing. It forgets periods that ended longer than keep
// ago, and announces nothing of them any more.
func NewBook(keep time.Duration) *Book {
	return &Book{keep: keep, counters: map[id]*record{}, undo: map[id]*record{}}
}

// Len is the number of counters that are remembered.
func (b *Book) Len() int { return len(b.counters) }

// over reports whether a period is too old to be remembered.
func (b *Book) over(end int64, now time.Time) bool {
	return end != 0 && end+b.keep.Milliseconds() <= now.UnixMilli()
}

// Forget drops the periods that ended longer ago than a Book keeps.
func (b *Book) Forget(now time.Time) {
	for i, r := range b.counters {
		if b.over(r.end, now) {
			delete(b.counters, i)
		}
	}
}

// Commit makes everything since the last Commit or Rollback stay.
func (b *Book) Commit() { clear(b.undo) }

// Rollback takes back what Observe and Restore added since the last Commit.
func (b *Book) Rollback() {
	for i, r := range b.undo {
		if r == nil {
			delete(b.counters, i)
		} else {
			b.counters[i] = r
		}
	}
	clear(b.undo)
}

// Observe appends to dst what is to be announced because of u, first what is armed
// again, then what is reached, each in ascending order of its counter, and remembers
// it as announced. late is how many counters were of a period that is over for
// longer than the Book keeps.
func (b *Book) Observe(dst []Announcement, u *Usage, now time.Time) (_ []Announcement, late int) {
	if u.Tenant == "" {
		return dst, 0 // nobody to tell
	}
	for i := range u.Counters {
		c := &u.Counters[i]
		switch {
		case c.Limit <= 0 || c.Limit >= Unlimited:
		case b.over(c.End, now):
			late++
		default:
			dst = b.counter(dst, u, c)
		}
	}
	return dst, late
}

// counter is Observe of one counter.
func (b *Book) counter(dst []Announcement, u *Usage, c *Counter) []Announcement {
	var r record
	if known := b.counters[idOf(c.Key, c.Start)]; known != nil {
		r = *known
	}
	at := rulesOf(c.RuleID, c.RuleVersion, u.RulesVersion, u.At, c.Limit)
	older := len(r.levels) > 0 && at.before(r.last)
	if older && c.Limit != r.last.limit {
		return dst // a limit that is no longer in force moves nothing
	}
	first := len(dst)
	if !u.Correction {
		dst = append(dst, r.rearmed(u, c, older)...)
	}
	dst = append(dst, r.reached(u, c, at, older)...)
	for i := first; i < len(dst); i++ {
		b.Restore(&dst[i])
	}
	return dst
}

// rearmed are the levels that a higher limit than they were announced with took
// usage below.
func (r *record) rearmed(u *Usage, c *Counter, older bool) []Announcement {
	var out []Announcement
	for i := range r.levels {
		if l := &r.levels[i]; l.announced && l.before(c, older) && l.released(c) {
			out = append(out, announcement(u, c, l.level, l.arm+1, Replenished))
		}
	}
	slices.SortFunc(out, func(a, b Announcement) int { return ascending(c.Limit)(a.Level, b.Level) })
	return out
}

// released reports whether it is the limit that took usage below the level: usage
// would be below it without any refund since the level was announced, or is at the
// level by the limit that it was announced with.
func (l *armed) released(c *Counter) bool {
	used := c.used()
	unrefunded := max(l.used, used+c.Refunded-l.refunded)
	return l.level.below(used, c.Limit) && (l.level.below(unrefunded, c.Limit) || !l.level.below(used, l.limit))
}

// reached are the levels that are reached and not announced in their arm.
func (r *record) reached(u *Usage, c *Counter, at rules, older bool) []Announcement {
	used := c.used()
	var levels []Level
	add := func(l Level) {
		if l.Reached(used, c.Limit) && !slices.Contains(levels, l) && r.awaits(l, c, at, older) {
			levels = append(levels, l)
		}
	}
	for _, n := range c.Percent {
		add(Percent(n))
	}
	for _, n := range c.Left {
		add(Left(n))
	}
	if c.Wallet {
		add(Overdraft())
	}
	slices.SortFunc(levels, ascending(c.Limit))
	out := make([]Announcement, len(levels))
	for i, l := range levels {
		out[i] = announcement(u, c, l, r.arm(l), typeAt(l))
	}
	return out
}

// awaits reports whether the counter as it is in c can announce the level: nobody
// did in this arm, the arm began before, and its rule has not done so as often as it may.
func (r *record) awaits(l Level, c *Counter, at rules, older bool) bool {
	a := r.find(l)
	return a == nil || !a.announced && a.before(c, older) && (a.rule == at.rule || !r.spent(l, at))
}

// spent reports whether a rule announced the level by its limit as often as it may.
func (r *record) spent(l Level, by rules) bool {
	t := r.told(l, by.rule, by.version, by.limit)
	return t != nil && t.times >= mostTold
}

func (r *record) told(l Level, rule uint64, version, limit int64) *told {
	for i := range r.past {
		if t := &r.past[i]; t.level == l && t.rule == rule && t.version == version && t.limit == limit {
			return t
		}
	}
	return nil
}

// ended remembers by what limit a level was announced in an arm that another rule ends.
func (r *record) ended(a *armed) {
	if t := r.told(a.level, a.rule, a.version, a.limit); t != nil {
		t.times++
		return
	}
	r.past = append(r.past, told{a.level, a.rule, a.version, a.limit, 1})
	if len(r.past) > maxTold {
		r.past = append(r.past[:0], r.past[1:]...)
	}
}

// before reports whether what is remembered of a level came before c.
func (l *armed) before(c *Counter, older bool) bool {
	was, is := sum(l.used, l.refunded), sum(c.used(), c.Refunded)
	return was < is || was == is && !older
}

// arm is the arm of a level, 1 of one that was never announced.
func (r *record) arm(l Level) int64 {
	if a := r.find(l); a != nil {
		return a.arm
	}
	return 1
}

func (r *record) find(l Level) *armed {
	for i := range r.levels {
		if r.levels[i].level == l {
			return &r.levels[i]
		}
	}
	return nil
}

func announcement(u *Usage, c *Counter, l Level, arm int64, t Type) Announcement {
	return Announcement{
		Type: t, Level: l, Arm: arm,
		Key: c.Key, Start: c.Start, End: c.End, Tenant: u.Tenant, Meter: c.Meter, RuleID: c.RuleID,
		Limit: c.Limit, Used: c.used(), Refunded: c.Refunded,
		Cause: u.Decision, At: u.At, RuleVersion: c.RuleVersion, RulesVersion: u.RulesVersion,
	}
}

// Restore remembers what was announced. Announcements of a counter are restored in
// the order in which they were made; one that comes again changes nothing.
func (b *Book) Restore(a *Announcement) {
	i := idOf(a.Key, a.Start)
	r := b.counters[i]
	if _, kept := b.undo[i]; !kept {
		b.undo[i] = r.clone()
	}
	if r == nil {
		r = &record{end: a.End}
		b.counters[i] = r
	}
	at := rulesOf(a.RuleID, a.RuleVersion, a.RulesVersion, a.At, a.Limit)
	if len(r.levels) == 0 || !at.before(r.last) {
		r.last = at
	}
	l := r.find(a.Level)
	if l == nil {
		r.levels = append(r.levels, armed{level: a.Level})
		l = &r.levels[len(r.levels)-1]
	}
	announced := a.Type != Replenished
	if a.Arm < l.arm || a.Arm == l.arm && (l.announced || !announced) {
		return
	}
	if l.announced && !announced && l.rule != at.rule {
		r.ended(l)
	}
	*l = armed{
		level: a.Level, arm: a.Arm, announced: announced,
		rule: at.rule, version: at.version, limit: a.Limit, used: a.Used, refunded: a.Refunded,
	}
}

func (r *record) clone() *record {
	if r == nil {
		return nil
	}
	c := *r
	c.levels, c.past = slices.Clone(r.levels), slices.Clone(r.past)
	return &c
}
