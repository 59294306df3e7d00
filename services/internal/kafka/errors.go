package kafka

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Errors of Produce and EnsureTopics. Match them with errors.Is; the text keeps
// what the broker said.
var (
	// ErrBufferFull reports that a record was not accepted because too many
	// wait for acknowledgement. It may be offered again later.
	ErrBufferFull = errors.New("kafka: buffer full")
	// ErrTimeout reports a record that could not be stored within
	// Config.DeliveryTimeout. It may have been stored all the same.
	ErrTimeout = errors.New("kafka: not delivered in time")
	// ErrNoTopic reports a topic that does not exist, or was deleted and made
	// again while records were on their way to the old one. Offering the
	// record again is right once the topic exists.
	ErrNoTopic = errors.New("kafka: no such topic")
	// ErrTooLarge reports a record the broker will never take at this size.
	ErrTooLarge = errors.New("kafka: record too large")
	// ErrForbidden reports missing rights or refused credentials.
	ErrForbidden = errors.New("kafka: forbidden")
	// ErrClosed reports that the client was closed.
	ErrClosed = errors.New("kafka: client closed")
)

// Refusals of a login name what to look at.
var (
	errLogin     = fmt.Errorf("%w: the brokers refuse the login; see %s, %s and %s", ErrForbidden, knobUser, knobPassword, knobSASL)
	errMechanism = fmt.Errorf("%w: the brokers do not offer that way to log in; see %s", ErrForbidden, knobSASL)
	errNoLogin   = fmt.Errorf("%w: the brokers do not let anybody log in there; see %s and %s", ErrForbidden, knobSASL, knobBrokers)
)

// refusedLogin reports whether err is about who the client says it is, which
// may be mended at the brokers, so that it is waited for.
func refusedLogin(err error) bool {
	return errors.Is(err, errLogin) || errors.Is(err, errMechanism) || errors.Is(err, errNoLogin)
}

// translated pairs the library's errors with this package's.
var translated = []struct {
	from []error
	to   error
}{
	{[]error{kgo.ErrMaxBuffered}, ErrBufferFull},
	{[]error{kgo.ErrRecordTimeout, kgo.ErrRecordRetries}, ErrTimeout},
	{[]error{kerr.UnknownTopicOrPartition, kerr.UnknownTopicID}, ErrNoTopic},
	{[]error{kerr.MessageTooLarge, kerr.RecordListTooLarge}, ErrTooLarge},
	{[]error{
		kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.ClusterAuthorizationFailed,
		kerr.TransactionalIDAuthorizationFailed,
	}, ErrForbidden},
	{[]error{kerr.SaslAuthenticationFailed}, errLogin},
	{[]error{kerr.UnsupportedSaslMechanism}, errMechanism},
	{[]error{kerr.IllegalSaslState}, errNoLogin},
	{[]error{kgo.ErrClientClosed}, ErrClosed},
}

// translate wraps err in this package's sentinel for it, if there is one. The
// original stays visible to errors.Is.
func translate(err error) error {
	if err == nil {
		return nil
	}
	for _, t := range translated {
		if errors.Is(err, t.to) {
			return err // already
		}
		for _, from := range t.from {
			if errors.Is(err, from) {
				return fmt.Errorf("%w: %w", t.to, err)
			}
		}
	}
	return err
}

// Permanent reports whether offering the same record again, unchanged, can only
// fail the same way. Everything else may be tried again.
func Permanent(err error) bool {
	return errors.Is(err, ErrTooLarge) || errors.Is(err, kerr.InvalidRecord) || errors.Is(err, kerr.InvalidTopicException)
}
