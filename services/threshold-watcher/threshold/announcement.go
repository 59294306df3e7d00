package threshold

import (
	"crypto/sha256"
	"encoding/binary"
)

// A Type says what is announced.
type Type uint8

// The types of announcements.
const (
	Reached     Type = 1 + iota // a level below the whole limit is reached
	Exhausted                   // 100 per cent are reached
	Overdrawn                   // a wallet's balance is below 0
	Replenished                 // a higher limit took the level away: it is armed again
)

// Types are all types.
var Types = [...]Type{Reached, Exhausted, Overdrawn, Replenished}

// String is the type as quota-events.v1 spells it.
func (t Type) String() string {
	return [...]string{"UNKNOWN", "THRESHOLD_REACHED", "EXHAUSTED", "OVERDRAWN", "REPLENISHED"}[t]
}

// An Announcement is one event of quota-events.v1 with what a Book needs to go on
// from it.
type Announcement struct {
	Type  Type
	Level Level
	Arm   int64 // of this level; from 1

	Key        string // of the counter
	Start, End int64  // of its period, milliseconds since 1970; 0: it has none
	Tenant     string
	Meter      string
	RuleID     string

	Limit    int64 // or granted total of a wallet
	Used     int64 // consumed less refunded
	Refunded int64

	Cause        [16]byte // decision
	At           int64    // of that decision, milliseconds since 1970
	RuleVersion  int64    // of RuleID
	RulesVersion int64    // revision of all rules that the decision was made under
}

// ID identifies what was announced: by the counter, its period, the level, the arm
// and the type, so that whoever announces it again gives it the same.
func (a *Announcement) ID() [16]byte {
	b := make([]byte, 0, 128)
	b = binary.AppendUvarint(b, uint64(len(a.Key))) // with lengths, parts cannot run together
	b = append(b, a.Key...)
	for _, n := range [...]int64{a.Start, int64(a.Level.sort), a.Level.n, a.Arm, int64(a.Type)} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	sum := sha256.Sum256(b)
	return [16]byte(sum[:16])
}

// typeAt is the type of an announcement that a level is reached.
func typeAt(l Level) Type {
	switch l.sort {
	case full:
		return Exhausted
	case overdraft:
		return Overdrawn
	case percent, left:
	}
	return Reached
}
