package kafka

import (
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// quiet is how long one and the same message is held back after it was logged.
// A broker that is away would otherwise fill the log ten times a second.
const quiet = 10 * time.Second

// clientLog passes the client library's messages on, a level lower than it
// rates them: what it calls an error it also retries.
type clientLog struct {
	log  *slog.Logger
	door *door // told when the brokers refuse the credentials, which only the library's log says

	mu   sync.Mutex
	said map[string]*repeat // by message, and topic where it is about one: a closed set
}

type repeat struct {
	until  time.Time
	missed int
}

func newClientLog(log *slog.Logger, d *door) *clientLog {
	return &clientLog{log: log, door: d, said: make(map[string]*repeat)}
}

// Level tells the library what not to bother formatting.
func (l *clientLog) Level() kgo.LogLevel { return kgo.LogLevelInfo }

// Log writes one message of the library unless it was written just now.
func (l *clientLog) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	for i, v := range keyvals {
		if err, ok := v.(error); ok {
			err = translate(err)
			if refusedLogin(err) {
				l.door.refuse("", err)
			}
			keyvals[i] = err
		}
	}
	missed, ok := l.admit(msg, time.Now())
	if !ok {
		return
	}
	write := l.log.Debug
	switch level {
	case kgo.LogLevelError:
		write = l.log.Warn
	case kgo.LogLevelWarn:
		write = l.log.Info
	case kgo.LogLevelNone, kgo.LogLevelInfo, kgo.LogLevelDebug:
	}
	write("kafka client", "event", msg, "repeats", missed, slog.Group("detail", keyvals...))
}

// admit reports whether msg may be logged now, and how often it was held back
// since it last was.
func (l *clientLog) admit(msg string, now time.Time) (missed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.said[msg]
	if r == nil {
		r = &repeat{}
		l.said[msg] = r
	}
	if now.Before(r.until) {
		r.missed++
		return 0, false
	}
	missed, r.missed = r.missed, 0
	r.until = now.Add(quiet)
	return missed, true
}

// warn writes a warning of this package's own about a topic, held back like the
// library's.
func (l *clientLog) warn(topic, msg string, keyvals ...any) {
	if missed, ok := l.admit(topic+" "+msg, time.Now()); ok {
		l.log.With(keyvals...).Warn("kafka waits", "topic", topic, "event", msg, "repeats", missed)
	}
}
