package wire

import (
	"errors"
	"fmt"
)

// What a decoder's error means for the record. An error that is none of these
// says nothing about the record: the registry could not be asked, and the same
// bytes must be tried again.
var (
	// ErrPoison reports bytes that no reader will ever accept: not Avro, not of
	// this subject, or outside the bounds of the schema. Set it aside with its
	// reason; nothing in it is to be believed, the version included.
	ErrPoison = errors.New("poison record")

	// ErrUnknownID is the ErrPoison of a schema id that the registry does not
	// have, or has for another subject only. A registry that was restored from
	// an old copy gives it for good records.
	ErrUnknownID = fmt.Errorf("%w: unknown schema id", ErrPoison)

	// ErrSkip reports a record of a kind that is newer than this reader. It is
	// to be passed over without alarm, and its version counts as seen.
	ErrSkip = errors.New("record of a newer kind")

	// ErrSetAside reports a good record that this reader is too old to apply:
	// a symbol it does not know, or a feature that the record requires. The last
	// good record of the key stays in force, and the version counts as seen.
	ErrSetAside = errors.New("record needs a newer reader")
)

// A FieldError is the ErrPoison of one field that breaks its bounds.
type FieldError struct {
	Field   string // path of the field in the schema, e.g. rule.match.networks[0]
	Problem string // what is wrong with it, e.g. "is 300 bytes, want at most 256"
}

// Error names the field and what is wrong with it.
func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

// Unwrap returns ErrPoison.
func (e *FieldError) Unwrap() error { return ErrPoison }
