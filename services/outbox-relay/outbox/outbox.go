// Package outbox knows what a relay may confirm. The log of a database is read
// transaction by transaction; the events of each are published without waiting
// for one another; and a position of the log may be given up only when every
// event before it is stored (docs/adr/0030).
package outbox

import "sync"

// A Position is a place in PostgreSQL's write-ahead log (an LSN), in bytes.
type Position uint64

// An Event is one row of the outbox, as Debezium's Outbox Event Router reads
// it.
type Event struct {
	ID      string // UUID in text; header id
	Topic   string // column aggregatetype
	Key     string // column aggregateid
	Type    string // column type, e.g. rule.changed; header eventType
	Version string // column version, decimal; header version
	Payload []byte // nil is a tombstone; empty is a value
}

// A Ledger follows transactions in commit order and says up to where the log
// may be confirmed: the end of the last transaction before which nothing is
// outstanding. It is safe for concurrent use: one goroutine reads the log,
// others acknowledge.
type Ledger struct {
	mu        sync.Mutex
	open      []*Transaction // in commit order; the first is the oldest not settled
	confirmed Position
	pending   int
	settled   chan struct{}
}

// NewLedger returns a ledger that has confirmed everything up to start.
func NewLedger(start Position) *Ledger {
	return &Ledger{confirmed: start, settled: make(chan struct{}, 1)}
}

// A Transaction is one commit of the log.
type Transaction struct {
	ledger  *Ledger
	pending int // events not acknowledged
	ended   bool
	end     Position
}

// Begin starts the next transaction of the log.
func (l *Ledger) Begin() *Transaction {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &Transaction{ledger: l}
	l.open = append(l.open, t)
	return t
}

// Add notes that an event of the transaction is on its way.
func (t *Transaction) Add() {
	t.ledger.mu.Lock()
	defer t.ledger.mu.Unlock()
	t.pending++
	t.ledger.pending++
}

// Stored notes that one event of the transaction is stored for good.
func (t *Transaction) Stored() {
	t.ledger.mu.Lock()
	defer t.ledger.mu.Unlock()
	t.pending--
	t.ledger.pending--
	t.ledger.settle()
	select {
	case t.ledger.settled <- struct{}{}:
	default:
	}
}

// End notes that the log has no more events of the transaction, whose commit
// ends at the given position.
func (t *Transaction) End(at Position) {
	t.ledger.mu.Lock()
	defer t.ledger.mu.Unlock()
	t.ended, t.end = true, at
	t.ledger.settle()
}

// settle confirms the oldest transactions that are complete. The caller holds
// the lock.
func (l *Ledger) settle() {
	for len(l.open) > 0 && l.open[0].ended && l.open[0].pending == 0 {
		l.confirmed = max(l.confirmed, l.open[0].end)
		l.open[0] = nil
		l.open = l.open[1:]
	}
}

// Idle notes that the log reaches at and holds nothing for us that we have not
// seen. It confirms at when nothing is outstanding, so that what other tables
// write does not keep the log for ever.
func (l *Ledger) Idle(at Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) == 0 {
		l.confirmed = max(l.confirmed, at)
	}
}

// Confirmed returns the position that may be confirmed.
func (l *Ledger) Confirmed() Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.confirmed
}

// Pending returns how many events are on their way.
func (l *Ledger) Pending() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pending
}

// Settled receives after events were stored; several may share one receive.
func (l *Ledger) Settled() <-chan struct{} { return l.settled }
