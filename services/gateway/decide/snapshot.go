package decide

import (
	"hash/maphash"

	"penstock.dev/services/gateway/decide/trie"
)

// seed keeps outsiders from choosing ids that collide.
var seed = maphash.MakeSeed()

func hashOf[K comparable](k K) uint64 { return maphash.Comparable(seed, k) }

// A Snapshot is the catalogue and the rules as they were at one revision. It
// never changes.
type Snapshot struct {
	revision  int64
	stranger  *Tenant // stands for tenants that are not in the catalogue
	tenants   trie.Map[string, *Tenant]
	keys      trie.Map[[32]byte, *Key]
	services  trie.Map[string, *ServiceDef]
	routes    trie.Map[route, []*ServiceDef]
	deepest   int // segments of the longest path prefix that any service had
	endpoints trie.Map[string, *EndpointDef]
	paths     trie.Map[string, *templates] // by service
	wallets   trie.Map[walletKey, *Wallet]
	rules     trie.Map[uint64, bucket]
	classes   []class
	ruleCount int
}

func newSnapshot() *Snapshot {
	return &Snapshot{
		stranger:  &Tenant{},
		tenants:   trie.New[string, *Tenant](hashOf),
		keys:      trie.New[[32]byte, *Key](hashOf),
		services:  trie.New[string, *ServiceDef](hashOf),
		routes:    trie.New[route, []*ServiceDef](hashOf),
		endpoints: trie.New[string, *EndpointDef](hashOf),
		paths:     trie.New[string, *templates](hashOf),
		wallets:   trie.New[walletKey, *Wallet](hashOf),
		rules:     trie.New[uint64, bucket](func(h uint64) uint64 { return h }),
	}
}

// Revision is the highest that was applied.
func (s *Snapshot) Revision() int64 { return s.revision }

// Count returns how many objects of a kind are in force; disabled rules are
// not.
func (s *Snapshot) Count(kind Kind) int {
	switch kind {
	case TenantKind:
		return s.tenants.Len()
	case KeyKind:
		return s.keys.Len()
	case ServiceKind:
		return s.services.Len()
	case EndpointKind:
		return s.endpoints.Len()
	case RuleKind:
		return s.ruleCount
	case WalletKind:
		return s.wallets.Len()
	default:
		return 0
	}
}

// Key returns the API key with the given SHA-256 digest.
func (s *Snapshot) Key(digest [32]byte) (Key, bool) {
	k, ok := s.keys.Get(digest)
	if !ok {
		return Key{}, false
	}
	return *k, true
}

// Tenant returns a tenant by its id, nil when it is not in the catalogue.
func (s *Snapshot) Tenant(id string) *Tenant {
	t, _ := s.tenants.Get(id)
	return t
}

// granted is what a tenant was granted of a meter.
func (s *Snapshot) granted(tenant, meter string) int64 {
	if w, ok := s.wallets.Get(walletKey{tenant, meter}); ok {
		return w.Granted
	}
	return 0
}

// Service returns a service by its id, nil when it is not in the catalogue.
func (s *Snapshot) Service(id string) *ServiceDef {
	v, _ := s.services.Get(id)
	return v
}

// A draft is the next snapshot in the making.
type draft struct {
	w         *writer
	revision  int64
	stranger  *Tenant
	tenants   *trie.Editor[string, *Tenant]
	keys      *trie.Editor[[32]byte, *Key]
	services  *trie.Editor[string, *ServiceDef]
	routes    *trie.Editor[route, []*ServiceDef]
	deepest   int
	endpoints *trie.Editor[string, *EndpointDef]
	paths     *trie.Editor[string, *templates]
	stale     map[string]bool // services whose paths are to be made anew
	wallets   *trie.Editor[walletKey, *Wallet]
	rules     *trie.Editor[uint64, bucket]
	classes   []class
	regrouped bool // the set of classes has changed
	ruleCount int
}

func newDraft(s *Snapshot, w *writer) *draft {
	return &draft{
		w: w, revision: s.revision, stranger: s.stranger,
		tenants: s.tenants.Edit(), keys: s.keys.Edit(),
		services: s.services.Edit(), routes: s.routes.Edit(), deepest: s.deepest,
		endpoints: s.endpoints.Edit(), paths: s.paths.Edit(), stale: map[string]bool{},
		wallets: s.wallets.Edit(), rules: s.rules.Edit(), classes: s.classes, ruleCount: s.ruleCount,
	}
}

func (d *draft) snapshot() *Snapshot {
	d.rebuildPaths()
	d.listClasses()
	return &Snapshot{
		revision: d.revision, stranger: d.stranger,
		tenants: d.tenants.Map(), keys: d.keys.Map(),
		services: d.services.Map(), routes: d.routes.Map(), deepest: d.deepest,
		endpoints: d.endpoints.Map(), paths: d.paths.Map(),
		wallets: d.wallets.Map(), rules: d.rules.Map(), classes: d.classes, ruleCount: d.ruleCount,
	}
}
