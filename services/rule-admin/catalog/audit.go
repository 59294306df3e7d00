package catalog

import (
	"encoding/json"
	"time"
)

// An Entry is what the audit says about one change. Nothing in it is secret.
type Entry struct {
	ID        string          `json:"id"` // also the header id of the record on rules.v1
	At        time.Time       `json:"at"`
	Actor     string          `json:"actor"`
	Role      string          `json:"role"`
	Action    Action          `json:"action"`
	Kind      Kind            `json:"kind"`
	ObjectID  string          `json:"object_id"`
	Before    json.RawMessage `json:"before"` // as GET showed it; null when it was created
	After     json.RawMessage `json:"after"`  // as GET shows it; null when it was deleted
	RequestID string          `json:"request_id"`
	Revision  int64           `json:"-"` // of the change; entries are ordered by it
}

// A Search says which entries are wanted. Empty fields are any.
type Search struct {
	Kind     Kind
	ObjectID string
	Actor    string
	Before   int64 // only entries of a lower revision; 0: from the newest
	Most     int   // entries at most
}
