package counters

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// An epoch key says which run of a server holds the counters beside it, by its
// run id, and since when. Whoever vouches for them sets the run; a server that
// was emptied, replaced or restarted has none or another's, and then no quota or
// wallet is decided. The time is that of the first charge, and no decision
// before it is corrected: what is remembered of its corrections was lost.
//
// A single Redis has one. A cluster has one in each slot, under a constant tag
// that lies there.
const epochPrefix = "epoch"

// slots is how many slots a cluster has.
const slots = 16384

// epochKeys are the epoch keys of a cluster, by slot.
var epochKeys = sync.OnceValue(func() *[slots]string {
	var keys [slots]string
	for n, left := 0, slots; left > 0; n++ {
		tag := strconv.Itoa(n)
		if slot := slotOf(tag); keys[slot] == "" {
			keys[slot] = epochPrefix + ":{" + tag + "}"
			left--
		}
	}
	return &keys
})

// slotOf returns the slot of a key's hash tag: CRC-16/XMODEM, as the cluster
// specification says.
func slotOf(tag string) int {
	crc := uint16(0)
	for i := range len(tag) {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc % slots)
}

// A serverInfo is what a server says of itself.
type serverInfo struct {
	run      string // id of the run
	policy   string // what it does when its memory is full
	volatile bool   // it says that it keeps no append-only file
}

// parseInfo reads the reply to INFO.
func parseInfo(text string) (serverInfo, error) {
	var info serverInfo
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "run_id":
			info.run = value
		case "maxmemory_policy":
			info.policy = value
		case "aof_enabled":
			info.volatile = value == "0"
		}
	}
	if info.run == "" {
		return info, fmt.Errorf("%w: INFO has no run_id", errReply)
	}
	return info, nil
}

// Vouched reports whether somebody vouches for what the store holds, as far as
// its decisions have shown. While nobody does, quotas and wallets are left to
// their failure modes.
func (s *Store) Vouched() bool { return !slices.ContainsFunc(s.nodes(), (*node).isLost) }

// adoptPause is how often adoptions are logged at most: each slot of a cluster
// is one.
const adoptPause = time.Second

// adopts makes the server that answered m vouch for a shard as it is, where the
// configuration says so. It reports whether it may be asked again.
func (s *Store) adopts(ctx context.Context, m *message, sh *shard) bool {
	if !s.adopt {
		return false
	}
	l, run := m.link, *m.link.run.Load()
	adopt := message{script: &s.scripts.adopt, words: adopting(sh.epoch), asking: m.asking}
	err := s.eval(ctx, l, &adopt)
	was := ""
	if err == nil && len(adopt.replies) == 1 {
		was, _ = adopt.replies[0].(string)
	}
	switch {
	case err != nil:
		s.log.DebugContext(ctx, "counter store not adopted", "epoch", sh.epoch, "error", err.Error())
		return false
	case was == run:
		return true // another was quicker
	}
	s.metrics.adopted.Inc()
	now := time.Now().UnixMicro()
	if last := l.adopted.Load(); now-last >= adoptPause.Microseconds() && l.adopted.CompareAndSwap(last, now) {
		s.log.WarnContext(ctx, "counter store adopted as it is: what it lost of quotas and wallets is sold again, but for what this process saw",
			"epoch", sh.epoch, "run_id", run, "before", was)
	}
	return true
}

// An adopting is the epoch key of what is adopted.
type adopting string

func (a adopting) command(verb string, script *string, _ string, run *string) []any {
	return []any{verb, script, 1, string(a), *run}
}

// vouches reports whether an epoch is of that run.
func vouches(epoch, run string) bool {
	of, _, _ := strings.Cut(epoch, ":")
	return of == run
}
