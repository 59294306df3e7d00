package catalog

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"penstock.dev/services/internal/endpoint"
	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog/strict"
)

// Bounds of a question, as the decision API has them.
const (
	maxQuestionPath = 8192 // bytes
	maxLabels       = 64
	maxLabelName    = 128 // bytes
)

// A Question is a decision request to be explained.
type Question struct {
	Request rule.Request
	Secret  string // of an API key; empty: none
	Cost    *int64 // nil: the endpoint's
	RuleID  string // of a rule that is to be among the candidates; empty: none
}

// ReadQuestion reads a decision request. The error is ErrMalformed: the decision
// API makes no difference.
func ReadQuestion(text []byte) (Question, error) {
	o, err := strict.Parse(text)
	if err != nil {
		return Question{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	var q Question
	var f rule.Faults
	word := func(name string, most int) string {
		s := Or(o.Text(name), "")
		f.Text(name, s, 0, most)
		return s
	}
	r := &q.Request
	word("request_id", rule.MaxText)
	r.Tenant, r.Application, r.User = word("tenant", rule.MaxText), word("application", rule.MaxText), word("user", rule.MaxText)
	q.Secret, r.Service = word("api_key", rule.MaxText), word("service", rule.MaxText)
	r.Method, r.Path = strings.ToUpper(word("method", maxMethod)), questionPath(word("path", maxQuestionPath), &f)
	r.Address = clientOf(word("client_ip", rule.MaxText), &f)
	if q.Cost = o.Int("cost"); q.Cost != nil {
		f.Range("cost", *q.Cost, 0, rule.Unlimited)
	}
	r.Labels = labels(o.Object("labels"), &f)
	o.Close()
	return q, faultError(ErrMalformed, append(o.Faults(), f...))
}

// questionPath wants a path as it is matched. How a gateway spells the paths of
// requests is the gateway's to know, so what it would spell anew is refused.
func questionPath(s string, f *rule.Faults) string {
	s, _, _ = strings.Cut(s, "?")
	if len(s) > 1 {
		s = strings.TrimSuffix(s, "/")
	}
	dots := func(segment string) bool { return segment == "." || segment == ".." }
	switch {
	case s == "":
	case s[0] != '/':
		f.Add("path", "does not begin with /")
	case strings.ContainsAny(s, `%\;`) || strings.Contains(s, "//") || slices.ContainsFunc(strings.Split(s, "/"), dots):
		f.Add("path", "is not as paths are matched: want no percent escape, backslash, ;parameter, dot segment or doubled slash")
	}
	return s
}

// clientOf is the client that an address is to a gateway: an IPv4 address
// itself, an IPv6 address its /64.
func clientOf(text string, f *rule.Faults) netip.Addr {
	if text == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		f.Add("client_ip", "is no IP address")
		return netip.Addr{}
	}
	if a = a.Unmap().WithZone(""); a.Is4() {
		return a
	}
	return netip.PrefixFrom(a, 64).Masked().Addr()
}

func labels(o *strict.Object, f *rule.Faults) map[string]string {
	if o == nil {
		return nil
	}
	out := map[string]string{}
	for _, name := range o.Names() {
		out[name] = Or(o.Text(name), "")
		f.Text("labels."+name, out[name], 0, rule.MaxText)
		if name == "" || len(name) > maxLabelName {
			f.Add("labels", "has a name of %d bytes, want 1 to %d", len(name), maxLabelName)
		}
	}
	if len(out) > maxLabels {
		f.Add("labels", "has %d items, want at most %d", len(out), maxLabels)
	}
	o.Close()
	return out
}

// Surroundings are what the catalogue adds to a question.
type Surroundings struct {
	Tenant    *Object   // nil: not catalogued
	Service   *Object   // nil: not catalogued
	Endpoints []*Object // of the service
}

// An Explanation says which rules apply to a request, and why not the others.
type Explanation struct {
	At          time.Time `json:"at"`
	Tenant      string    `json:"tenant"`
	Plan        string    `json:"plan"`
	Application string    `json:"application"`
	User        string    `json:"user"`
	APIKey      string    `json:"api_key"` // id
	ClientIP    string    `json:"client_ip"`
	Service     string    `json:"service"`
	Endpoint    string    `json:"endpoint"`
	Method      string    `json:"method"`
	Path        string    `json:"path"`
	Cost        int64     `json:"cost"`
	BlockedBy   string    `json:"blocked_by"` // the enforced block rule, beside which nothing counts
	// Uncatalogued are the dimensions, of tenant and service, whose value nobody
	// catalogued: only rules that do not name them can apply.
	Uncatalogued []string       `json:"uncatalogued"`
	Groups       []GroupVerdict `json:"groups"`
	Candidates   []Candidate    `json:"candidates"`
	Omitted      bool           `json:"omitted"` // there are more candidates, at which nobody looked
}

// A GroupVerdict is the rules among which one wins.
type GroupVerdict struct {
	Mode    rule.Mode `json:"mode"`
	Kind    rule.Kind `json:"kind"`
	Subject []string  `json:"subject"`
	Meter   string    `json:"meter"`
	Window  string    `json:"window,omitempty"`
	Unit    string    `json:"unit,omitempty"`
	Count   int       `json:"count,omitempty"`
	Winner  string    `json:"winner"`
	Cost    int64     `json:"cost"` // that the winner would charge
}

// A Candidate is a rule that could have applied.
type Candidate struct {
	RuleID  string    `json:"rule_id"`
	Version int64     `json:"version"`
	Name    string    `json:"name"`
	Kind    rule.Kind `json:"kind"`
	Mode    rule.Mode `json:"mode"`
	Won     bool      `json:"won"`
	Reasons []Reason  `json:"reasons"` // why it lost; empty when it won

	rule *rule.Rule
}

// A Reason is why a candidate lost.
type Reason struct {
	Field    string `json:"field"` // of the rule, e.g. match.service
	Message  string `json:"message"`
	BeatenBy string `json:"beaten_by,omitempty"` // the rule that won over it
}

// MostCandidates is how many rules an explanation shows at most. Rules whose
// selectors hold come first.
const MostCandidates = 1000

// Explain says which rules would apply to a request at now. Nothing is charged.
func (c *Catalog) Explain(ctx context.Context, q Question, now time.Time) (*Explanation, error) {
	r := &q.Request
	if q.Secret != "" {
		digest := sha256.Sum256([]byte(q.Secret))
		key, err := c.store.KeyOf(ctx, digest[:])
		if err != nil {
			return nil, err
		}
		if err := identify(r, key); err != nil {
			return nil, err
		}
	}
	near, err := c.store.Surroundings(ctx, r.Tenant, r.Service)
	if err != nil {
		return nil, err
	}
	r.Cost = 1
	near.complete(r)
	if q.Cost != nil {
		r.Cost = *q.Cost
	}
	found, err := c.store.Candidates(ctx, r, q.RuleID, MostCandidates+1)
	if err != nil {
		return nil, err
	}
	if q.RuleID != "" && !slices.ContainsFunc(found, func(o *Object) bool { return o.ID == q.RuleID }) {
		return nil, fmt.Errorf("%w: %s %s", ErrNotFound, KindRule, clip(q.RuleID))
	}
	e := &Explanation{
		At: now.UTC(), Tenant: r.Tenant, Plan: r.Plan, Application: r.Application, User: r.User, APIKey: r.APIKey,
		Service: r.Service, Endpoint: r.Endpoint, Method: r.Method, Path: r.Path, Cost: r.Cost,
		Uncatalogued: near.missing(r), Groups: []GroupVerdict{}, Candidates: []Candidate{}, Omitted: len(found) > MostCandidates,
	}
	if r.Address.IsValid() {
		e.ClientIP = r.Address.String()
	}
	for _, o := range found[:min(len(found), MostCandidates)] {
		candidate, err := c.candidate(o)
		if err != nil {
			return nil, err
		}
		e.Candidates = append(e.Candidates, candidate)
	}
	e.judge(r, q.Cost != nil && *q.Cost == 0, now)
	return e, nil
}

// identify fills in what an API key stands for.
func identify(r *rule.Request, key *Object) error {
	if key == nil {
		var f rule.Faults
		f.Add("api_key", "is not known: a decision would answer 401, unknown-key")
		return faultError(ErrInvalid, f)
	}
	body, _ := key.Body.(*APIKey) // the store keeps kinds apart
	var f rule.Faults
	for _, d := range []struct {
		name  string
		said  *string
		keyed *string
	}{{"tenant", &r.Tenant, body.Tenant}, {"application", &r.Application, body.Application}, {"user", &r.User, body.User}} {
		switch keyed := Or(d.keyed, ""); {
		case *d.said == "":
			*d.said = keyed
		case keyed != "" && *d.said != keyed:
			f.Add(d.name, "is not the one of the api_key")
		}
	}
	r.APIKey = key.ID
	return faultError(ErrMalformed, f)
}

// missing lists the dimensions of a request that the catalogue does not have.
func (s Surroundings) missing(r *rule.Request) []string {
	list := []string{}
	if s.Tenant == nil && r.Tenant != "" {
		list = append(list, "tenant")
	}
	if s.Service == nil && r.Service != "" {
		list = append(list, "service")
	}
	return list
}

// complete adds to a request its tenant's plan and its endpoint, with the cost
// of that.
func (s Surroundings) complete(r *rule.Request) {
	if s.Tenant != nil {
		if t, ok := s.Tenant.Body.(*Tenant); ok {
			r.Plan = Or(t.Plan, "")
		}
	}
	if r.Service == "" || r.Path == "" {
		return
	}
	var templates endpoint.Tree[*Object]
	for _, o := range s.Endpoints {
		if e, ok := o.Body.(*Endpoint); ok {
			templates.Add(o.ID, Or(e.Method, ""), Or(e.Path, ""), o)
		}
	}
	if o, ok := templates.Find(r.Method, r.Path); ok {
		e, _ := o.Body.(*Endpoint) // it was one
		r.Endpoint, r.Cost = o.ID, Or(e.Cost, 1)
	}
}

// candidate is a rule as gateways take it.
func (c *Catalog) candidate(o *Object) (Candidate, error) {
	body, _ := o.Body.(*Rule) // the store keeps kinds apart
	r, faults := body.Resolve(o.ID)
	if len(faults) > 0 {
		return Candidate{}, fmt.Errorf("stored rule %s: %w", o.ID, faults)
	}
	if body.Condition != nil {
		condition, err := c.compile(*body.Condition)
		if err != nil {
			return Candidate{}, fmt.Errorf("stored rule %s: %w", o.ID, err)
		}
		r.Condition = condition
	}
	return Candidate{RuleID: o.ID, Version: o.Version, Name: r.Name, Kind: r.Kind, Mode: r.Mode, Reasons: []Reason{}, rule: &r}, nil
}

// judge finds the winner of each group, and says why the others lost.
func (e *Explanation) judge(q *rule.Request, peek bool, now time.Time) {
	best := map[rule.Group]*Candidate{}
	for i := range e.Candidates {
		c := &e.Candidates[i]
		for _, m := range c.rule.Misses(q, now) {
			c.Reasons = append(c.Reasons, Reason{Field: m.Field, Message: m.Message})
		}
		if len(c.Reasons) > 0 {
			continue
		}
		if o, ok := best[c.rule.Group()]; !ok || c.rule.Beats(o.rule) {
			best[c.rule.Group()] = c
		}
	}
	for i := range e.Candidates {
		c := &e.Candidates[i]
		if len(c.Reasons) > 0 {
			continue
		}
		w := best[c.rule.Group()]
		if c.Won = w == c; !c.Won {
			by := w.rule.Advantage(c.rule)
			c.Reasons = append(c.Reasons, Reason{Field: by, Message: beaten(by, w.rule, c.rule), BeatenBy: w.RuleID})
			continue
		}
		e.Groups = append(e.Groups, c.verdict(q.Cost, peek))
		if c.Kind == rule.Block && c.Mode == rule.Enforce {
			e.BlockedBy = c.RuleID
		}
	}
	slices.SortFunc(e.Groups, func(a, b GroupVerdict) int { return strings.Compare(a.Winner, b.Winner) })
	slices.SortStableFunc(e.Candidates, func(a, b Candidate) int {
		if a.Won != b.Won {
			if a.Won {
				return -1
			}
			return 1
		}
		return strings.Compare(a.RuleID, b.RuleID)
	})
}

// beaten says by what the winner is ahead.
func beaten(by string, winner, loser *rule.Rule) string {
	switch by {
	case "priority":
		return fmt.Sprintf("rule %s is as specific and has priority %d, this one %d", winner.ID, winner.Priority, loser.Priority)
	case "id":
		return fmt.Sprintf("rule %s is as specific, has the same priority and the smaller id", winner.ID)
	default:
		return fmt.Sprintf("rule %s is more specific: it has %s", winner.ID, by)
	}
}

func (c *Candidate) verdict(cost int64, peek bool) GroupVerdict {
	g := c.rule.Group()
	v := GroupVerdict{Mode: g.Mode, Kind: g.Kind, Subject: g.Subject.Names(), Meter: g.Meter, Unit: string(g.Unit), Count: g.Count, Winner: c.RuleID}
	if g.Window > 0 {
		v.Window = g.Window.String()
	}
	if v.Cost = cost; c.rule.Cost != nil && !peek {
		v.Cost = *c.rule.Cost
	}
	if g.Kind == rule.Block {
		v.Cost = 0
	}
	return v
}
