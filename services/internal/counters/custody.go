package counters

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"penstock.dev/services/internal/limit"
)

// What follows is for the custodian, which keeps what counters have come to
// elsewhere, and brings it back where a store has lost it.

// Bounds of what a custodian asks at once.
const (
	maxRestored  = 500 // counters or marks in a call: half a millisecond of the server
	maxRead      = 1000
	maxPiped     = 32  // calls to a node before their replies are awaited
	epochsAtOnce = 512 // of a cluster's master, at a look
)

// ErrReplaced reports a store that was emptied or replaced while it was being
// restored: all of it is to be done again.
var ErrReplaced = errors.New("the counter store was emptied or replaced meanwhile")

// A Custody watches a store and restores it. Its methods may be called at the
// same time but for Look, which remembers where it was.
type Custody struct {
	store *Store
	round int // of looks
}

// Custody returns the custody of the store.
func (s *Store) Custody() *Custody { return &Custody{store: s} }

// A Saved is a counter that may have to be restored.
type Saved struct {
	Key string
	limit.Saved
}

// An Outcome says what became of a counter that was restored.
type Outcome byte

// The outcomes.
const (
	Kept       Outcome = 'K' // it held as much
	Raised     Outcome = 'R' // it held less
	Added      Outcome = 'A' // it was not there
	Over       Outcome = 'O' // it was not there, and its time is over
	Unreadable Outcome = 'V' // its value is of a version that is not known here, or no counter's
)

// A Restored is what a counter has come to.
type Restored struct {
	Outcome Outcome
	limit.Totals
}

// A Claim is what is being restored: all of a single Redis, or some slots of a
// cluster.
type Claim struct {
	Since  time.Time // the latest that any of it began
	places map[int]place
	all    bool
}

// A place is the claim of one epoch.
type place struct{ claim, run, key string }

// Covers reports whether a counter or a mark lies in what is being restored.
func (c *Claim) Covers(key string) bool {
	if c.all {
		return true
	}
	_, in := c.places[slotOf(tagOf(key))]
	return in
}

// tagOf is the hash tag of a key.
func tagOf(key string) string {
	if from := strings.IndexByte(key, '{'); from >= 0 {
		if n := strings.IndexByte(key[from+1:], '}'); n > 0 {
			return key[from+1 : from+1+n]
		}
	}
	return key
}

// Look returns the slots for which nobody vouches, 0 of a single Redis. It asks on
// a new connection, so it is answered by whoever is at the address now, and
// takes down how that keeps its data. Of a cluster it looks at a part of the
// slots, another one each time, and at all of a master where one was found. The
// error wraps ErrUnavailable.
func (c *Custody) Look(ctx context.Context) ([]int, error) {
	s := c.store
	if s.cluster == nil {
		if err := s.single.node.meetAnew(ctx); err != nil {
			return nil, s.wrap(ctx, err)
		}
		lost, err := s.unvouched(ctx, s.single.node, []int{0})
		return lost, s.wrap(ctx, err)
	}
	c.round++
	byMaster, err := s.served(ctx)
	if err != nil {
		return nil, s.wrap(ctx, err)
	}
	var mu sync.Mutex
	var all []int
	var errs []error
	var looking sync.WaitGroup
	for n, its := range byMaster {
		looking.Go(func() {
			lost, err := s.lookAt(ctx, n, its, c.round)
			mu.Lock()
			defer mu.Unlock()
			all, errs = append(all, lost...), append(errs, err)
		})
	}
	looking.Wait()
	slices.Sort(all)
	return all, s.wrap(ctx, errors.Join(errs...))
}

// lookAt looks at some of a master's slots, and at all where one is lost.
func (s *Store) lookAt(ctx context.Context, n *node, its []int, round int) ([]int, error) {
	err := n.meetAnew(ctx)
	if err != nil {
		s.cluster.suspect(ctx)
		return nil, err
	}
	parts := (len(its) + epochsAtOnce - 1) / epochsAtOnce
	from := (round % parts) * epochsAtOnce
	some := its[from:min(from+epochsAtOnce, len(its))]
	lost, err := s.unvouched(ctx, n, some)
	if err == nil && len(lost) > 0 && len(some) < len(its) {
		lost, err = s.unvouched(ctx, n, its)
	}
	return lost, err
}

// served are the slots of each master, ascending.
func (s *Store) served(ctx context.Context) (map[*node][]int, error) {
	if time.Now().UnixMicro()-s.cluster.looked.Load() > refreshEvery.Microseconds() {
		if err := s.cluster.look(ctx, func() bool { return false }); err != nil {
			return nil, err
		}
	}
	byMaster := map[*node][]int{}
	for slot := range slots {
		n := s.cluster.slots[slot].Load()
		if n == nil {
			return nil, errNoRoute
		}
		byMaster[n] = append(byMaster[n], slot)
	}
	return byMaster, nil
}

// meetAnew asks who is at the node's address on a connection of its own. A
// server that is another than the link's is met by whoever connects next.
func (n *node) meetAnew(ctx context.Context) error {
	l, err := n.connect(ctx)
	if err != nil && err != errForeign { //nolint:errorlint // it is returned as it is
		return err
	}
	if err == nil {
		options := *l.client.Options()
		options.MinIdleConns, options.PoolSize = 0, 1
		options.OnConnect = func(ctx context.Context, cn *redis.Conn) error { return l.meet(ctx, cn, n) }
		probe := redis.NewClient(&options)
		err = probe.Ping(ctx).Err()
		_ = probe.Close()
	}
	if err == errForeign { //nolint:errorlint // it is returned as it is
		_, err = n.connect(ctx)
	}
	return err
}

// unvouched returns which of some slots of a node nobody vouches for.
func (s *Store) unvouched(ctx context.Context, n *node, some []int) (lost []int, err error) {
	l, err := n.connect(ctx)
	if err != nil {
		return nil, err
	}
	all := l.client.Pipeline()
	cmds := make([]*redis.StringCmd, len(some))
	for i, slot := range some {
		cmds[i] = all.Get(ctx, s.epochKey(slot))
	}
	_, _ = all.Exec(ctx) // each has its own error
	for i, cmd := range cmds {
		epoch, err := cmd.Result()
		switch what, _ := cueOf(err); {
		case what != cueNone: // it has moved: whoever has it is asked next time
			s.cluster.suspect(ctx)
		case err != nil && !errors.Is(err, redis.Nil):
			return nil, err
		case !vouches(epoch, *l.run.Load()):
			lost = append(lost, some[i])
		}
	}
	return lost, nil
}

func (s *Store) epochKey(slot int) string {
	if s.cluster == nil {
		return epochPrefix
	}
	return epochKeys()[slot]
}

// Claim says that what Look found is being restored. What somebody vouches for by
// now is left out; nil when that is all of it.
func (c *Custody) Claim(ctx context.Context, lost []int) (*Claim, error) {
	s := c.store
	claim := &Claim{places: map[int]place{}, all: s.cluster == nil}
	nonce := rand.Text()
	var mu sync.Mutex
	var work []errand
	for _, slot := range lost {
		key := s.epochKey(slot)
		work = append(work, errand{slot: slot, script: &s.scripts.claim, words: func(run string) []any {
			return []any{1, key, run, "~" + run + "~" + nonce}
		}, take: func(run string, replies []any) error {
			of, since, err := parseClaim(replies)
			if err != nil || of == "" {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			claim.places[slot] = place{claim: of, run: run, key: key}
			if since.After(claim.Since) {
				claim.Since = since
			}
			return nil
		}})
	}
	if err := s.errands(ctx, work); err != nil {
		return nil, s.wrap(ctx, err)
	}
	if len(claim.places) == 0 {
		return nil, nil //nolint:nilnil // there is nothing to restore
	}
	return claim, nil
}

func parseClaim(replies []any) (claim string, since time.Time, err error) {
	if len(replies) != 2 {
		return "", since, errReply
	}
	claim, ok := replies[0].(string)
	text, also := replies[1].(string)
	var micros int64
	if _, err := fmt.Sscan(text, &micros); err != nil || !ok || !also {
		return "", since, errReply
	}
	return claim, time.UnixMicro(micros).UTC(), nil
}

// Vouch makes the store vouch for what was claimed: all that it held has been
// restored. Since is when that began, where the marks of all corrections from
// then on were restored too; zero leaves it at what the claim found. The error
// wraps ErrReplaced where any of it was emptied since the claim.
func (c *Custody) Vouch(ctx context.Context, claim *Claim, since time.Time) error {
	began := ""
	if !since.IsZero() {
		began = micros(since)
	}
	var work []errand
	var mu sync.Mutex
	gone := 0
	for slot, p := range claim.places {
		work = append(work, errand{slot: slot, script: &c.store.scripts.vouch, words: func(string) []any {
			return []any{1, p.key, p.claim, p.run, began}
		}, take: func(_ string, replies []any) error {
			done, ok := int64(0), len(replies) == 1
			if ok {
				done, ok = replies[0].(int64)
			}
			if !ok {
				return errReply
			}
			mu.Lock()
			defer mu.Unlock()
			if done == 0 {
				gone++
			}
			return nil
		}})
	}
	if err := c.store.errands(ctx, work); err != nil {
		return c.store.wrap(ctx, err)
	}
	if gone > 0 {
		return fmt.Errorf("%d of %d epochs: %w", gone, len(work), ErrReplaced)
	}
	return nil
}

// Restore has counters hold at least what they are known to have held. Each key
// is to be there once. The error wraps ErrUnavailable; it may then be repeated.
func (c *Custody) Restore(ctx context.Context, saved []Saved) ([]Restored, error) {
	return c.restoreAt(ctx, "", saved)
}

func (c *Custody) restoreAt(ctx context.Context, now string, saved []Saved) ([]Restored, error) {
	all := make([]Restored, len(saved))
	work := c.store.inSlots(len(saved), maxRestored, func(i int) string { return saved[i].Key }, func(slot int, some []int) errand {
		return errand{slot: slot, script: &c.store.scripts.restore, words: func(string) []any {
			words := make([]any, 1, 3+len(some))
			words[0] = len(some)
			numbers := make([]byte, 0, 24*len(some))
			for _, i := range some {
				words = append(words, saved[i].Key)
				expiry := int64(0)
				if !saved[i].Expiry.IsZero() {
					expiry = saved[i].Expiry.UnixMicro()
				}
				numbers = appendDouble(appendDouble(appendDouble(numbers, saved[i].Consumed), saved[i].Refunded), expiry)
			}
			return append(words, now, numbers)
		}, take: func(_ string, replies []any) error {
			const each = 1 + 2*8
			reply, ok := "", len(replies) == 1
			if ok {
				reply, ok = replies[0].(string)
			}
			if !ok || len(reply) != each*len(some) {
				return errReply
			}
			for k, i := range some {
				r := reply[each*k:]
				all[i] = Restored{Outcome(r[0]), limit.Totals{Consumed: int64(double(r[1:])), Refunded: int64(double(r[9:]))}}
			}
			return nil
		}}
	})
	if err := c.store.errands(ctx, work); err != nil {
		return nil, c.store.wrap(ctx, err)
	}
	return all, nil
}

// Read reads counters by their keys. One that is not there is zero, as is one
// that cannot be read. The error wraps ErrUnavailable.
func (c *Custody) Read(ctx context.Context, keys []string) ([]limit.Totals, error) {
	all := make([]limit.Totals, len(keys))
	work := c.store.inSlots(len(keys), maxRead, func(i int) string { return keys[i] }, func(slot int, some []int) errand {
		return errand{slot: slot, words: func(string) []any {
			words := make([]any, 1, 1+len(some))
			words[0] = "mget"
			for _, i := range some {
				words = append(words, keys[i])
			}
			return words
		}, take: func(_ string, replies []any) error {
			if len(replies) != len(some) {
				return errReply
			}
			for k, i := range some {
				if value, there := replies[k].(string); there {
					all[i], _ = DecodeTotals(value) // what cannot be read is said when it is restored
				}
			}
			return nil
		}}
	})
	if err := c.store.errands(ctx, work); err != nil {
		return nil, c.store.wrap(ctx, err)
	}
	return all, nil
}

// Each calls take with all quotas and wallets that the store holds, some at a
// time: what was there all along once or more, what came or went meanwhile
// perhaps. The error wraps ErrUnavailable, or is take's.
func (c *Custody) Each(ctx context.Context, take func([]Saved) error) error {
	s := c.store
	nodes := s.nodes()
	if s.cluster != nil {
		byMaster, err := s.served(ctx)
		if err != nil {
			return s.wrap(ctx, err)
		}
		nodes = nodes[:0]
		for n := range byMaster {
			nodes = append(nodes, n)
		}
	}
	for _, n := range nodes {
		if err := s.scan(ctx, n, take); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) scan(ctx context.Context, n *node, take func([]Saved) error) error {
	l, err := n.connect(ctx)
	for cursor := uint64(0); err == nil; {
		var keys []string
		if keys, cursor, err = l.client.Scan(ctx, cursor, "", maxRead).Result(); err != nil {
			break
		}
		var some []Saved
		if some, err = s.values(ctx, l, slices.DeleteFunc(keys, func(k string) bool { return !isTotal(k) })); err != nil {
			break
		}
		if len(some) > 0 {
			if err := take(some); err != nil {
				return err
			}
		}
		if cursor == 0 {
			return nil
		}
	}
	return s.wrap(ctx, err)
}

// values reads counters of one node. What has gone is left out.
func (s *Store) values(ctx context.Context, l *link, keys []string) (some []Saved, err error) {
	all := l.client.Pipeline()
	cmds := make([]*redis.StringCmd, len(keys))
	for i, key := range keys {
		cmds[i] = all.Get(ctx, key)
	}
	if len(keys) > 0 {
		_, _ = all.Exec(ctx) // each has its own error
	}
	for i, cmd := range cmds {
		value, err := cmd.Result()
		switch what, _ := cueOf(err); {
		case what != cueNone, errors.Is(err, redis.Nil), err != nil && redis.HasErrorPrefix(err, "WRONGTYPE"):
			continue
		case err != nil:
			return nil, err
		}
		totals, err := DecodeTotals(value)
		if err != nil {
			continue
		}
		v := Saved{Key: keys[i], Saved: limit.Saved{Totals: totals}}
		if expiry := double(value[17:]); whole(expiry) && expiry > 0 {
			v.Expiry = time.UnixMicro(int64(expiry)).UTC()
		}
		some = append(some, v)
	}
	return some, nil
}

// maxKey is how long a counter's key may be: usage.v1 tells of none that is longer.
const maxKey = 2048

// isTotal reports whether a key is a quota's or a wallet's.
func isTotal(key string) bool {
	n := strings.IndexByte(key, '}')
	if n < 0 || key[0] != '{' || len(key) > maxKey {
		return false
	}
	for _, kind := range []string{":e:quota:", ":e:wallet:", ":s:quota:", ":s:wallet:"} {
		if strings.HasPrefix(key[n+1:], kind) {
			return true
		}
	}
	return false
}
