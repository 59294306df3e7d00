package decide

import (
	"sync"
	"sync/atomic"

	"penstock.dev/services/internal/rule"
)

// maxGraves is how many deleted objects are remembered by their version, the
// newest deletions first. A repeat of an older version that arrives after so
// many other deletions would bring the object back until its tombstone is
// repeated too; a hundred thousand cost about 15 MB.
const maxGraves = 100_000

// A Change is one object as it is from now on.
type Change struct {
	Kind Kind
	ID   string

	// Version rises per kind and id; a lower or equal one than was seen changes
	// nothing. Of a deletion and with Keep, 0 means that it is not known, and
	// that it is the newest.
	Version int64

	// Object is a *Tenant, *Key, *ServiceDef, *EndpointDef, *rule.Rule or
	// *Wallet, by Kind, and belongs to the book from then on. Nil deletes.
	Object any

	// Keep makes the version count as seen while what is in force stays. Under
	// puts an object in force below a version that was kept, where nothing was
	// known to be in force.
	Keep, Under bool
}

// A Book is the catalogue and the rules in force. It is safe for concurrent
// use; the zero Book is not usable, NewBook makes one.
type Book struct {
	current atomic.Pointer[Snapshot]

	mu sync.Mutex // guards what follows, and who publishes
	w  writer
}

// A writer knows what a snapshot was made from.
type writer struct {
	objects   map[object]held
	graves    []grave // oldest first
	classes   map[class]int
	groups    map[rule.Group]membership
	numbers   []uint32                           // of groups that are gone
	endpoints map[string]map[string]*EndpointDef // by service and id
}

// An object is the identity of one.
type object struct {
	kind Kind
	id   string
}

// A held is the newest version of an object. Without a value it is deleted, or
// blind: no version was seen but ones to keep.
type held struct {
	version int64
	value   any
	blind   bool
}

type grave struct {
	object
	version int64
}

// NewBook returns an empty book, at revision 0.
func NewBook() *Book {
	b := &Book{w: writer{
		objects:   map[object]held{},
		classes:   map[class]int{},
		groups:    map[rule.Group]membership{},
		endpoints: map[string]map[string]*EndpointDef{},
	}}
	b.current.Store(newSnapshot())
	return b
}

// Current returns what is in force now. It takes no lock, and what it returns
// never changes: use one snapshot for all questions of one request.
func (b *Book) Current() *Snapshot { return b.current.Load() }

// Apply makes all changes in order and publishes them at once. It costs what
// the changes cost, however much the book holds. It reports which changes were
// news, in their order.
func (b *Book) Apply(changes []Change) []bool {
	if len(changes) == 0 {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	d := newDraft(b.Current(), &b.w)
	news := make([]bool, len(changes))
	for i := range changes {
		news[i] = d.apply(&changes[i])
	}
	b.current.Store(d.snapshot())
	return news
}

// Blind reports whether an object has had versions to keep and nothing to keep
// below them: neither an object nor a deletion.
func (b *Book) Blind(kind Kind, id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.w.objects[object{kind, id}].blind
}

// Replace publishes what from holds in place of everything in b, and empties
// from.
func (b *Book) Replace(from *Book) {
	empty := NewBook()
	from.mu.Lock()
	w, s := from.w, from.Current()
	from.w = empty.w
	from.current.Store(empty.Current())
	from.mu.Unlock()

	b.mu.Lock()
	defer b.mu.Unlock()
	b.w = w
	b.current.Store(s)
}

// apply makes one change and reports whether it was news.
func (d *draft) apply(c *Change) bool {
	d.revision = max(d.revision, c.Version)
	if !c.Kind.Decides() {
		return true
	}
	o := object{c.Kind, c.ID}
	old, known := d.w.objects[o]
	version, unversioned := c.Version, c.Version == 0 && (c.Keep || c.Object == nil)
	switch {
	case c.Under && !old.blind:
		return false
	case c.Under, unversioned:
		version = old.version
	case known && version <= old.version:
		return false
	}
	next := held{version: version, value: c.Object}
	if c.Keep {
		next.value, next.blind = old.value, old.blind || !known
	}
	d.w.objects[o] = next
	if next.value == nil {
		d.w.bury(o, version)
	}
	if c.Keep {
		return true
	}
	if old.value != nil {
		d.remove(old.value)
	}
	if c.Object != nil {
		d.add(c.Object)
	}
	return true
}

// bury remembers a deletion, at the cost of the oldest.
func (w *writer) bury(o object, version int64) {
	w.graves = append(w.graves, grave{o, version})
	for len(w.graves) > maxGraves {
		g := w.graves[0]
		w.graves = w.graves[1:]
		if h := w.objects[g.object]; h.value == nil && h.version == g.version {
			delete(w.objects, g.object)
		}
	}
}

// add puts a value where it is looked for.
func (d *draft) add(value any) {
	switch v := value.(type) {
	case *Tenant:
		d.tenants.Set(v.ID, v)
	case *Key:
		d.keys.Set(v.Digest, v)
	case *ServiceDef:
		d.addService(v)
	case *EndpointDef:
		d.addEndpoint(v)
	case *rule.Rule:
		d.addRule(v)
	case *Wallet:
		d.wallets.Set(v.key(), v)
	}
}

// remove is the opposite of add.
func (d *draft) remove(value any) {
	switch v := value.(type) {
	case *Tenant:
		d.tenants.Delete(v.ID)
	case *Key:
		if k, ok := d.keys.Get(v.Digest); ok && k.ID == v.ID {
			d.keys.Delete(v.Digest)
		}
	case *ServiceDef:
		d.removeService(v)
	case *EndpointDef:
		d.removeEndpoint(v)
	case *rule.Rule:
		d.removeRule(v)
	case *Wallet:
		d.wallets.Delete(v.key())
	}
}
