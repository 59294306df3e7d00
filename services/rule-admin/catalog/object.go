package catalog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog/strict"
)

// An Object is one thing of the catalogue as it is now.
type Object struct {
	Kind      Kind
	ID        string
	Version   int64 // the revision of its last change, so it rises across deletion too
	ChangedAt time.Time
	ChangedBy string // actor
	Body      Body   // what was put
	Kept      Kept   // what goes with it to the gateways and is shown to nobody
}

// A Body is what an operator writes about one object: as it was put, defaults
// not filled in, so that it can be shown as it was put.
type Body interface {
	// Kind is the kind of object that it describes.
	Kind() Kind

	// Validate returns every fault that can be seen without other objects.
	Validate() rule.Faults

	// Refs returns the objects that it refers to.
	Refs() []Ref

	read(o *strict.Object)
}

// A Ref is a reference to another object.
type Ref struct {
	Field string // e.g. match.tenant
	Kind  Kind
	ID    string
}

// Kept is what the service keeps beside a body.
type Kept struct {
	Digest   []byte         `json:"digest,omitzero"`   // of an API key: SHA-256 of its secret
	Former   []FormerPeriod `json:"former,omitzero"`   // of a tenant, oldest first, at most MaxFormer
	Previous *Previous      `json:"previous,omitzero"` // of a rule whose period changed
}

// A FormerPeriod is a zone and an anchor that a tenant had.
type FormerPeriod struct {
	Zone   string    `json:"zone"`
	Anchor time.Time `json:"anchor,omitzero"`
	Until  time.Time `json:"until"`
}

// A Previous is the period that a rule had. The one that was running at Until
// ends as it was promised.
type Previous struct {
	Period Period    `json:"period"`
	Until  time.Time `json:"until"`        // instant of the change
	End    time.Time `json:"end,omitzero"` // of the running period; zero: it depends on the request's tenant
}

// Read returns the body of the object kind/id that text describes. What GET
// shows can be put back: version, changed_at and changed_by are allowed and
// mean nothing, an id must be the object's. The error is ErrMalformed, or
// ErrInvalid and then the body is there all the same. Whether a condition can
// be compiled is not judged here.
func Read(kind Kind, id string, text []byte) (Body, error) {
	o, err := strict.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	said := o.Text("id")
	o.Int("version")
	o.Text("changed_at")
	o.Text("changed_by")
	body := kind.blank()
	body.read(o)
	o.Close()
	if err := faultError(ErrMalformed, o.Faults()); err != nil {
		return nil, err
	}
	var faults rule.Faults
	if said != nil && *said != id {
		faults.Add("id", "is %q, want %q as in the path", *said, id)
	}
	faults = append(faults, body.Validate()...)
	return body, faultError(ErrInvalid, faults)
}

// Load returns the body that Store wrote as JSON.
func Load(kind Kind, text []byte) (Body, error) {
	body := kind.blank()
	if body == nil {
		return nil, fmt.Errorf("%w: kind %q", ErrInvalid, kind)
	}
	if err := json.Unmarshal(text, body); err != nil {
		return nil, fmt.Errorf("stored %s: %w", kind, err)
	}
	return body, nil
}

// stamp is what every object shows beside its body.
type stamp struct {
	Version   int64     `json:"version"`
	ChangedAt time.Time `json:"changed_at"`
	ChangedBy string    `json:"changed_by"`
}

// MarshalJSON returns what an operator is shown: what was put, and id, version,
// changed_at and changed_by.
func (o *Object) MarshalJSON() ([]byte, error) {
	id, err := json.Marshal(struct {
		ID string `json:"id"`
	}{o.ID})
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(o.Body)
	if err != nil {
		return nil, err
	}
	tail, err := json.Marshal(stamp{o.Version, o.ChangedAt.UTC(), o.ChangedBy})
	if err != nil {
		return nil, err
	}
	parts := [][]byte{id[1 : len(id)-1]}
	if fields := body[1 : len(body)-1]; len(fields) > 0 {
		parts = append(parts, fields)
	}
	parts = append(parts, tail[1:len(tail)-1])
	return append(append([]byte{'{'}, bytes.Join(parts, []byte{','})...), '}'), nil
}

// Or returns what p points to, or def when a field was left out.
func Or[T any](p *T, def T) T {
	if p == nil {
		return def
	}
	return *p
}

// required adds a fault when a field was left out, and returns its value.
func required[T any](f *rule.Faults, field string, p *T) (v T, ok bool) {
	if p == nil {
		f.Add(field, "is missing")
		return v, false
	}
	return *p, true
}

// ref appends a reference when the field names something.
func ref(refs []Ref, field string, kind Kind, id *string) []Ref {
	if id == nil || *id == "" {
		return refs
	}
	return append(refs, Ref{Field: field, Kind: kind, ID: *id})
}

// optionalID wants a catalogue id when the field is there.
func optionalID(f *rule.Faults, field string, id *string) {
	if id != nil {
		f.ID(field, *id)
	}
}

// name wants a display name when the field is there.
func name(f *rule.Faults, s *string) { f.Text("name", Or(s, ""), 0, rule.MaxText) }
