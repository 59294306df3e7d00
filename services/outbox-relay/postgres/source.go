// Package postgres reads the outbox from PostgreSQL's write-ahead log by
// logical replication (pgoutput, protocol version 1).
//
// It delivers at least once: the slot's position moves only past transactions
// whose events are all stored, so a relay that dies repeats what was
// outstanding. The header id makes repeats recognisable, the record's version
// makes them harmless.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"penstock.dev/services/outbox-relay/outbox"
)

// Config says what to read. All fields are required but MaxInFlight.
type Config struct {
	URL         string // of the database, as libpq takes it; the user needs REPLICATION
	Slot        string // logical slot, made when it is missing
	Publication string // made by the service that owns the outbox
	MaxInFlight int    // events sent and not yet stored, at least 1
}

// How the source paces itself.
const (
	statusEvery  = time.Second            // between reports of the confirmed position
	retryMin     = 200 * time.Millisecond // after a session that failed
	retryMax     = 5 * time.Second
	standbyEvery = 500 * time.Millisecond // between looks at a slot that another relay holds
	drainFor     = 5 * time.Second        // for events in flight when the process stops
	endWithin    = 2 * time.Second        // then, for the server to end the stream
	frozenFor    = 20 * time.Second       // between two turns of the reader, when it is taken to have been frozen
)

// A Publish sends one event and calls done exactly once, with nil when it is
// stored. Events of one key must be stored in the order of the calls.
type Publish func(ctx context.Context, e outbox.Event, done func(error))

// A Source reads one outbox. Several may run against one slot: the slot lets
// one of them read, the others stand by.
type Source struct {
	cfg     Config
	publish Publish
	log     *slog.Logger
	m       *metrics
	state   atomic.Pointer[state]
}

// A state is what Ready answers.
type state struct{ err error }

// Run reads the outbox until ctx ends. It reconnects for ever; what can only
// be mended by an operator shows in the log and the metrics.
func (s *Source) Run(ctx context.Context) error {
	wait := retryMin
	for ctx.Err() == nil {
		began := time.Now()
		err := s.session(ctx)
		s.m.active.Set(0)
		if ctx.Err() != nil {
			break
		}
		if time.Since(began) > time.Minute {
			wait = retryMin
		}
		delay := wait
		s.state.Store(&state{err})
		if inUse(err) {
			s.state.Store(&state{})
			delay = standbyEvery
			s.log.Debug("standing by: another relay holds the slot", "slot", s.cfg.Slot)
		} else {
			s.m.failures.WithLabelValues(string(reasonOf(err))).Inc()
			s.log.Warn("session ended, reading again from the confirmed position", "error", err.Error(), "retry_in", delay.String())
			wait = min(2*wait, retryMax)
		}
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
	}
	return nil
}

// session reads from the confirmed position until something fails.
func (s *Source) session(ctx context.Context) error {
	if err := s.ensureSlot(ctx); err != nil {
		return fmt.Errorf("slot %s: %w", s.cfg.Slot, err)
	}
	conn, err := replicationConn(ctx, s.cfg.URL)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	err = pglogrepl.StartReplication(ctx, conn, s.cfg.Slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names '" + s.cfg.Publication + "'"},
	})
	if err != nil {
		return fmt.Errorf("start replication: %w", err)
	}
	s.m.active.Set(1)
	s.state.Store(&state{})
	s.log.Info("reading the outbox", "slot", s.cfg.Slot, "publication", s.cfg.Publication)
	// What this session has not delivered at its end is given up: the next
	// reader of the slot, here or elsewhere, publishes it again, and it must not
	// arrive behind what that one publishes. Until then it outlives ctx, for
	// drain settles it when the process stops.
	sending, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	r := &reader{
		source: s, conn: conn, ledger: outbox.NewLedger(0), rows: newRows(),
		failed: make(chan error, 1), sending: sending, turned: wallClock(),
	}
	return r.run(ctx)
}

// wallClock goes on while the machine sleeps, other than the monotonic clock.
func wallClock() time.Time { return time.Now().Round(0) }

// A reader is one session's state.
type reader struct {
	source   *Source
	conn     *pgconn.PgConn
	ledger   *outbox.Ledger
	rows     *rows
	tx       *outbox.Transaction // being read, nil between transactions
	failed   chan error          // the first event that could not be stored
	sending  context.Context     // ends with the session
	turned   time.Time           // when the reader last turned, by the wall clock
	reportAt time.Time
	stopBy   time.Time // when a transaction that does not end is given up
}

func (r *reader) run(ctx context.Context) error {
	for {
		if err := r.report(ctx); err != nil {
			return err
		}
		select {
		case err := <-r.failed:
			return err
		default:
		}
		if r.mayStop(ctx) {
			return r.drain(context.WithoutCancel(ctx))
		}
		msg, err := r.next(ctx)
		if err == nil {
			err = r.awake()
		}
		if err == nil && msg != nil {
			err = r.handle(msg)
		}
		if err != nil {
			return err
		}
	}
}

// awake returns an error when this process was not running for so long that
// the slot may be another relay's by now: what the connection still holds is
// then old. It is called between reading a message and handling it.
func (r *reader) awake() error {
	now := wallClock()
	away := now.Sub(r.turned)
	r.turned = now
	if away > frozenFor {
		return fmt.Errorf("%w for %v", errFrozen, away.Round(time.Second))
	}
	return nil
}

// next returns the next message, or nil when it is time to look up. While too
// much is in flight, it reads none.
func (r *reader) next(ctx context.Context) ([]byte, error) {
	if r.ledger.Pending() >= r.source.cfg.MaxInFlight {
		r.waitSettled(ctx, r.reportAt)
		return nil, nil
	}
	return r.receive(ctx)
}

// mayStop reports whether the process is told to stop and no transaction is
// half read: the rest of it comes at once, and then nothing of it is repeated.
func (r *reader) mayStop(ctx context.Context) bool {
	if ctx.Err() == nil {
		return false
	}
	if r.stopBy.IsZero() {
		r.stopBy = time.Now().Add(drainFor)
	}
	return r.tx == nil || time.Now().After(r.stopBy)
}

// receive returns the next message, or nil when it is time to look up.
func (r *reader) receive(ctx context.Context) ([]byte, error) {
	if r.tx != nil {
		ctx = context.WithoutCancel(ctx)
	}
	rctx, cancel := context.WithDeadline(ctx, r.reportAt)
	defer cancel()
	raw, err := r.conn.ReceiveMessage(rctx)
	switch {
	case err == nil:
	case rctx.Err() != nil && pgconn.Timeout(err), ctx.Err() != nil:
		return nil, nil
	default:
		return nil, fmt.Errorf("receive: %w", err)
	}
	switch msg := raw.(type) {
	case *pgproto3.CopyData:
		return msg.Data, nil
	case *pgproto3.ErrorResponse:
		return nil, fmt.Errorf("receive: %w", pgconn.ErrorResponseToPgError(msg))
	case *pgproto3.CopyDone:
		return nil, errors.New("receive: the server ended the stream")
	default:
		return nil, nil
	}
}

func (r *reader) handle(data []byte) error {
	switch data[0] {
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		k, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return fmt.Errorf("keepalive: %w", err)
		}
		if r.tx == nil {
			r.ledger.Idle(outbox.Position(k.ServerWALEnd))
		}
		if k.ReplyRequested {
			r.reportAt = time.Time{}
		}
	case pglogrepl.XLogDataByteID:
		x, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil {
			return fmt.Errorf("log data: %w", err)
		}
		m, err := pglogrepl.Parse(x.WALData)
		if err != nil {
			return fmt.Errorf("log data: %w", err)
		}
		return r.message(m)
	}
	return nil
}

func (r *reader) message(m pglogrepl.Message) error {
	switch m := m.(type) {
	case *pglogrepl.RelationMessage:
		return r.rows.learn(m)
	case *pglogrepl.BeginMessage:
		r.tx = r.ledger.Begin()
	case *pglogrepl.InsertMessage:
		e, err := r.rows.event(m)
		if err != nil {
			return err
		}
		r.send(r.sending, r.tx, e)
	case *pglogrepl.CommitMessage:
		r.tx.End(outbox.Position(m.TransactionEndLSN))
		r.tx = nil
		r.source.m.behind.Observe(time.Since(m.CommitTime).Seconds())
	}
	return nil
}

// send publishes e on behalf of tx. The acknowledgement may come after the
// session ended; it then settles a ledger that nobody reads.
func (r *reader) send(ctx context.Context, tx *outbox.Transaction, e outbox.Event) {
	tx.Add()
	r.source.publish(ctx, e, func(err error) {
		if err != nil {
			select {
			case r.failed <- fmt.Errorf("%w: event %s of %s %s: %w", errPublish, e.ID, e.Topic, e.Key, err):
			default:
			}
			return
		}
		r.source.m.events.Inc()
		tx.Stored()
	})
}

// report tells the server what is confirmed, once a second or when asked.
func (r *reader) report(ctx context.Context) error {
	now := time.Now()
	if now.Before(r.reportAt) {
		return nil
	}
	r.reportAt = now.Add(statusEvery)
	at := pglogrepl.LSN(r.ledger.Confirmed())
	if err := pglogrepl.SendStandbyStatusUpdate(ctx, r.conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: at}); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// waitSettled returns when an event was stored, one failed, or at until.
func (r *reader) waitSettled(ctx context.Context, until time.Time) {
	select {
	case <-ctx.Done():
	case <-r.ledger.Settled():
	case err := <-r.failed:
		r.failed <- err
	case <-time.After(time.Until(until)):
	}
}

// drain waits for what is in flight and confirms it, so that an ordinary
// restart repeats nothing.
func (r *reader) drain(ctx context.Context) error {
	settle, cancel := context.WithTimeout(ctx, drainFor)
	defer cancel()
	for r.ledger.Pending() > 0 && settle.Err() == nil && len(r.failed) == 0 {
		r.waitSettled(settle, time.Now().Add(statusEvery))
	}
	r.reportAt = time.Time{}
	if err := r.report(ctx); err != nil {
		return err
	}
	return r.endStream(ctx)
}

// endStream ends the stream in order and waits until the server has done so
// too. To close a connection while it holds something unread is to reset it,
// and then the server may never see the report that went before.
func (r *reader) endStream(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	r.conn.Frontend().Send(&pgproto3.CopyDone{})
	if err := r.conn.Frontend().Flush(); err != nil {
		return fmt.Errorf("end the stream: %w", err)
	}
	for {
		msg, err := r.conn.ReceiveMessage(ctx)
		if err != nil {
			return fmt.Errorf("end the stream: %w", err)
		}
		if _, ended := msg.(*pgproto3.ReadyForQuery); ended {
			return nil
		}
	}
}

// Ready returns nil while this relay reads the outbox or stands by for the one
// that does.
func (s *Source) Ready(context.Context) error {
	if state := s.state.Load(); state != nil {
		return state.err
	}
	return errors.New("not connected yet")
}
