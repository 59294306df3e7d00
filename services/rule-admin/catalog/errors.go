package catalog

import (
	"errors"
	"fmt"
	"strings"

	"penstock.dev/services/internal/rule"
)

// What can be wrong with a call. Match with errors.Is; the text says more.
var (
	// ErrMalformed reports a body that is no JSON object, or has an unknown
	// field or a value of the wrong type. It comes as a *FaultError when fields
	// can be named.
	ErrMalformed = errors.New("malformed")

	// ErrInvalid reports a body of the right shape that is out of bounds or
	// refers to nothing. It comes as a *FaultError.
	ErrInvalid = errors.New("invalid")

	// ErrNotFound reports an object that is not there.
	ErrNotFound = errors.New("not found")

	// ErrInUse reports an object that others refer to. It comes as an
	// *InUseError.
	ErrInUse = errors.New("in use")

	// ErrStale reports a condition that does not hold: the object has another
	// version than the caller saw, or is there, or is not.
	ErrStale = errors.New("stale")

	// ErrExists is ErrStale of an object that was to be made and is there.
	ErrExists = fmt.Errorf("%w", ErrStale)

	// ErrConditionRequired reports a replacement without a condition. It comes
	// as an *UnconditionalError.
	ErrConditionRequired = errors.New("condition required")

	// ErrConflict reports a change that the state of the catalogue does not
	// allow. It comes as a *FaultError.
	ErrConflict = errors.New("conflict")

	// ErrUnavailable reports a store that does not answer, or not in time. A
	// change may have been made.
	ErrUnavailable = errors.New("store unavailable")

	// ErrNoCounters reports that the counter store does not answer, or that there
	// is none.
	ErrNoCounters = errors.New("counters unavailable")

	// ErrNoSchema reports that records cannot be written, because no schema
	// registry has given their schema an id yet.
	ErrNoSchema = errors.New("no schema id")
)

// A FaultError names the fields that are wrong.
type FaultError struct {
	Err    error // ErrMalformed, ErrInvalid or ErrConflict
	Faults rule.Faults
}

// Error names every fault.
func (e *FaultError) Error() string { return fmt.Sprintf("%s: %s", e.Err, e.Faults) }

// Unwrap returns what kind of error it is.
func (e *FaultError) Unwrap() error { return e.Err }

// invalid returns the faults as an error, or nil when there are none.
func faultError(err error, faults rule.Faults) error {
	if len(faults) == 0 {
		return nil
	}
	return &FaultError{Err: err, Faults: faults}
}

// An UnconditionalError names the object that was to be replaced without a
// condition, and the version that it is in.
type UnconditionalError struct {
	Kind    Kind
	ID      string
	Version int64
}

// Error names the object and its version.
func (e *UnconditionalError) Error() string {
	return fmt.Sprintf("%s: %s %s is there, in version %d: name the version to replace, or any", ErrConditionRequired, e.Kind, e.ID, e.Version)
}

// Unwrap returns ErrConditionRequired.
func (e *UnconditionalError) Unwrap() error { return ErrConditionRequired }

// A Referrer is an object that refers to another one.
type Referrer struct {
	Kind  Kind
	ID    string
	Field string // where it does, e.g. match.tenant
}

// MaxNamed is how many referrers an InUseError names.
const MaxNamed = 20

// An InUseError names the objects that refer to one that was to be deleted, or
// was to belong to somebody else.
type InUseError struct {
	Kind      Kind
	ID        string
	Field     string     // what was to change; empty: the object was to be deleted
	Referrers []Referrer // at most MaxNamed
	More      int        // how many are not named
}

// Error names the object and its referrers.
func (e *InUseError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s is referred to by ", e.Kind, e.ID)
	for i, r := range e.Referrers {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s/%s (%s)", r.Kind, r.ID, r.Field)
	}
	if e.More > 0 {
		fmt.Fprintf(&b, " and %d more", e.More)
	}
	return b.String()
}

// Unwrap returns ErrInUse.
func (e *InUseError) Unwrap() error { return ErrInUse }
