package kafka

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"
)

// A Group says how the members of a consumer group read. All of them should
// say the same.
type Group struct {
	// ID names the group; by custom it is the service's name. Required.
	ID string
	// Topics are read, at least one. Consume waits until all of them exist.
	Topics []string
	// MaxRecords bounds a batch. Zero means 5,000.
	MaxRecords int
	// MaxWait is how long a broker may hold a fetch that finds nothing: not how
	// long a record waits. Zero means 1 s.
	MaxWait time.Duration
	// FromEnd has a group that never committed anything in a topic begin at the
	// topic's end: that position is committed before the first record is read,
	// so nothing written later is skipped. Otherwise it begins at the start, as
	// it does with partitions that are added later, and with topics that are
	// added while the group has members.
	FromEnd bool
	// SessionTimeout is how long a member that died keeps its partitions. Zero
	// means 10 s; Apache Kafka accepts 6 s to 30 min.
	SessionTimeout time.Duration
	// RebalanceTimeout is how long the group waits for a member that is busy
	// handling before it goes on without it. Zero means 60 s.
	RebalanceTimeout time.Duration
}

// A GroupHandler handles what Consume reads. Its methods are never called at
// the same time, though not always from the same goroutine. Assigned and
// Revoked must not wait: the whole group does meanwhile.
type GroupHandler interface {
	// Handle makes a batch durable. The records, never none, ascend by topic,
	// partition and offset, and may be kept. Nil means that all of them are
	// durable: their offsets are then committed. An error ends Consume, unless
	// ctx has ended.
	//
	// While Handle runs the member keeps its partitions, so it may take as long
	// as it must: a store that refuses for an hour is waited for in here. It
	// must watch ctx, which ends when Consume is to stop, and when the group
	// has been waiting for this member almost as long as it will. After the
	// latter the batch is handed out again: to this member if it still has the
	// partitions, else to another. A Handle that does not return in time loses
	// the partitions, and its records are handled again by their next owner.
	Handle(ctx context.Context, records []Record) error
	// Assigned is told the partitions, by topic, that were added.
	Assigned(partitions map[string][]int32)
	// Revoked is told the partitions, by topic, that were taken away. All of
	// them are before Consume returns.
	Revoked(partitions map[string][]int32)
}

// Bounds of a group's life.
const (
	defaultSessionTimeout   = 10 * time.Second
	defaultRebalanceTimeout = 60 * time.Second
	heartbeat               = 3 * time.Second
	// commitWithin bounds one attempt to commit, also the last one of a member
	// that leaves.
	commitWithin = 5 * time.Second
	// leaveWithin bounds saying goodbye to a broker that may be away.
	leaveWithin = 3 * time.Second
	// stuckPause keeps a batch that nobody can read from having the group
	// rebalance without pause.
	stuckPause = 10 * time.Second
	// lagEvery is how often the lag is asked for, since a handler that waits
	// does not let it be counted.
	lagEvery = 10 * time.Second
)

// errWaiting ends a Handle for which the group has waited long enough.
var errWaiting = errors.New("kafka: the group waits for this member")

// errAgain ends one membership; Consume begins another.
var errAgain = errors.New("membership ended")

// Validate returns every fault of the group at once, or nil.
func (g Group) Validate() error {
	var faults []error
	if g.ID == "" {
		faults = append(faults, errors.New("group: no id"))
	}
	if len(g.Topics) == 0 || slices.Contains(g.Topics, "") {
		faults = append(faults, errors.New("group: no topic, or one without a name"))
	}
	if g.MaxRecords < 0 || g.MaxWait < 0 || g.SessionTimeout < 0 || g.RebalanceTimeout < 0 {
		faults = append(faults, errors.New("group: batch size and times must not be negative"))
	}
	return errors.Join(faults...)
}

// withDefaults returns g with its zero values filled in.
func (g Group) withDefaults() Group {
	g.MaxRecords = cmp.Or(g.MaxRecords, pollRecords)
	g.MaxWait = cmp.Or(g.MaxWait, fetchWait)
	g.SessionTimeout = cmp.Or(g.SessionTimeout, defaultSessionTimeout)
	g.RebalanceTimeout = cmp.Or(g.RebalanceTimeout, defaultRebalanceTimeout)
	return g
}

// patience is how long Handle may go on once a rebalance waits for it: the
// group learns of the wait up to a heartbeat after it began, and the way out
// takes a commit.
func (g Group) patience() time.Duration {
	return g.RebalanceTimeout - min(heartbeat+commitWithin+2*time.Second, g.RebalanceTimeout/2)
}

// Consume reads topics as a member of a consumer group, at-least-once, until
// ctx ends, Close is called or the handler fails. Offsets are committed,
// synchronously, after Handle returned nil and before a partition can be taken
// away; nothing is committed of a batch whose Handle failed. So no record is
// skipped, and those that were handled and not committed are handled again:
// after a crash, a failed commit, or a Handle that the group did not wait for.
//
// Partitions move cooperatively: those that stay are not interrupted. Brokers
// that are away and topics that do not exist are waited for, which the log
// says. Only committed records are read when the writer uses transactions. At
// its end a member leaves, and its partitions move at once. Consume returns
// the error of ctx, ErrClosed, or the handler's error wrapped.
func (c *Client) Consume(ctx context.Context, g Group, h GroupHandler) error {
	if err := g.Validate(); err != nil {
		return err
	}
	m := &member{client: c, group: g.withDefaults(), handler: h, lag: newLags(c.metrics, g.Topics)}
	ctx, release, err := c.attach(ctx, m)
	if err != nil {
		return err
	}
	defer release()
	defer m.lag.forget()
	for {
		if err := m.membership(ctx); !errors.Is(err, errAgain) {
			return err
		}
		if err := pause(ctx, errorPause); err != nil {
			return err
		}
	}
}
