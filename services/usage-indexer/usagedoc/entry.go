package usagedoc

// An Entry is a document on its way into the index.
type Entry struct {
	ID  [16]byte // the event's
	Day Day
	Doc []byte // what Append wrote
}

// A Verdict is how an entry ended.
type Verdict uint8

// The verdicts.
const (
	Pending   Verdict = iota // it has not ended
	Created                  // the document is new in the index
	Duplicate                // it was there already
	Rejected                 // the store will never take it
)

// An Outcome is the end of one entry.
type Outcome struct {
	Verdict Verdict
	Cause   string // of Rejected: what the store said
}
