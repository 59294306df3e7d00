package registry

import (
	"fmt"
	"net/http"
)

// An Error is a refusal as the API words it.
type Error struct {
	Status  int    // HTTP
	Code    int    // of the Confluent API, e.g. 40403
	Message string // for people
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

func notFound(code int, format string, args ...any) error {
	return &Error{http.StatusNotFound, code, fmt.Sprintf(format, args...)}
}

func unprocessable(code int, format string, args ...any) error {
	return &Error{http.StatusUnprocessableEntity, code, fmt.Sprintf(format, args...)}
}

func errSubject(subject string) error {
	return notFound(40401, "Subject '%s' not found.", subject)
}

func errVersion(version int) error { return notFound(40402, "Version %d not found.", version) }

func errSchema(id int) error { return notFound(40403, "Schema %d not found", id) }

func errNoSuchSchema() error { return notFound(40403, "Schema not found") }

func errInvalidSchema(err error) error { return unprocessable(42201, "Invalid schema: %v", err) }

func errInvalidVersion(v string) error {
	return unprocessable(42202, "The specified version '%s' is not a valid version id. Allowed values are between [1, 2^31-1] and the string \"latest\"", v)
}

func errStore(err error) error {
	return &Error{http.StatusInternalServerError, 50001, fmt.Sprintf("Error in the backend data store: %v", err)}
}

func errIncompatible(subject string, faults []string) error {
	return &Error{http.StatusConflict, http.StatusConflict, fmt.Sprintf(
		"Schema being registered is incompatible with an earlier schema for subject %q, details: %v", subject, faults)}
}
