package rulesv1

import (
	"slices"

	"penstock.dev/schemas/internal/check"
)

// algorithms are the ways that each kind of rule may count.
var algorithms = map[RuleKind][]Algorithm{
	RuleKindRate: {
		AlgorithmFixedWindow, AlgorithmSlidingWindowLog, AlgorithmSlidingWindowCounter,
		AlgorithmTokenBucket, AlgorithmLeakyBucket, AlgorithmGCRA,
	},
	RuleKindQuota:  {AlgorithmQuota},
	RuleKindWallet: {AlgorithmOverdraftWallet},
	RuleKindBlock:  {AlgorithmNone},
}

// dimensions are the dimensions in the order of the schema's symbols.
var dimensions = []Dimension{DimensionTenant, DimensionApplication, DimensionUser, DimensionAPIKey, DimensionIP}

func (u *Rule) check(c *check.Check) {
	c.Bytes("name", u.Name, 0, 256)
	if !slices.Contains(algorithms[u.Kind], u.Algorithm) {
		c.Fail("algorithm", "is %.32q, which is none of kind %.32q", u.Algorithm, u.Kind)
	}
	u.checkSubject(c)
	if u.Match != nil {
		c.Enter("match")
		u.Match.check(c)
		c.Leave()
	}
	c.Bytes("condition", u.Condition, 0, 4096)
	u.checkCapacity(c)
	u.checkPeriods(c)
	c.Meter("meter", u.Meter)
	optionalRange(c, "cost", u.Cost, 0, maxExact)
	c.Items("thresholds_percent", len(u.ThresholdsPercent), 16)
	c.Ascending("thresholds_percent", u.ThresholdsPercent, 1, 100)
	c.Items("thresholds_left", len(u.ThresholdsLeft), 16)
	c.Descending("thresholds_left", u.ThresholdsLeft, 0, maxExact)
	c.Range("priority", int64(u.Priority), -maxPriority, maxPriority)
	c.Range("max_delay_us", u.MaxDelayUS, 0, maxDelay)
	if u.Lease != nil {
		c.That(u.Kind == RuleKindRate, "lease", "is set, which only rates have")
		c.Enter("lease")
		c.Range("units", u.Lease.Units, 1, maxCapacity)
		c.Range("ttl_us", u.Lease.TTLUS, 1, maxLease)
		c.Leave()
	}
	optionalMicros(c, "valid_from", u.ValidFrom)
	optionalMicros(c, "valid_to", u.ValidTo)
}

func (u *Rule) checkSubject(c *check.Check) {
	c.Items("subject", len(u.Subject), 8)
	before := -1
	for i, d := range u.Subject {
		at := slices.Index(dimensions, d)
		c.That(at > before, check.Item("subject", i), "is out of order or there twice")
		before = at
	}
}

// checkCapacity checks how much passes, and in which window.
func (u *Rule) checkCapacity(c *check.Check) {
	unlimited := u.Kind == RuleKindBlock || u.Kind == RuleKindWallet && u.Wallet == WalletModePrepaid
	c.That((u.Limit == nil) == unlimited, "limit", "is null for kind block and prepaid wallets, and for them alone")
	optionalRange(c, "limit", u.Limit, 0, maxExact)
	if u.Kind == RuleKindRate {
		c.Range("window_us", u.WindowUS, 1, maxWindow)
	} else {
		c.Range("window_us", u.WindowUS, 0, 0)
	}
	bucket := u.Algorithm == AlgorithmTokenBucket || u.Algorithm == AlgorithmLeakyBucket || u.Algorithm == AlgorithmGCRA
	c.That((u.Burst != nil) == bucket, "burst", "is set for token_bucket, leaky_bucket and gcra, and for them alone")
	optionalRange(c, "burst", u.Burst, 0, maxCapacity)
}

// checkPeriods checks what renews, and when.
func (u *Rule) checkPeriods(c *check.Check) {
	switch {
	case u.Kind != RuleKindWallet && u.Wallet != WalletModeNone:
		c.Fail("wallet", "is %.32q, want none for a rule that is no wallet", u.Wallet)
	case u.Kind == RuleKindWallet && u.Wallet != WalletModePrepaid && u.Wallet != WalletModeRenewable:
		c.Fail("wallet", "is %.32q, want prepaid or renewable", u.Wallet)
	}
	renews := u.Kind == RuleKindQuota || u.Kind == RuleKindWallet && u.Wallet == WalletModeRenewable
	c.That((u.Period != nil) == renews, "period", "is set for quotas and renewable wallets, and for them alone")
	u.Period.check(c, "period")
	u.PreviousPeriod.check(c, "previous_period")
	c.That(u.PeriodEffectiveAt == nil || u.PreviousPeriod != nil, "period_effective_at", "is set without previous_period")
	optionalMicros(c, "period_effective_at", u.PeriodEffectiveAt)
}

func (m *Match) check(c *check.Check) {
	c.Bytes("tenant", m.Tenant, 0, 256)
	c.OptionalID("plan", m.Plan)
	c.Bytes("application", m.Application, 0, 256)
	c.Bytes("user", m.User, 0, 256)
	c.Bytes("api_key", m.APIKey, 0, 256)
	c.OptionalID("service", m.Service)
	c.OptionalID("endpoint", m.Endpoint)
	checkNetworks(c, m.Networks)
}

func (p *Period) check(c *check.Check, name string) {
	if p == nil {
		return
	}
	c.Enter(name)
	c.Range("count", int64(p.Count), 1, 1000)
	c.Zone("zone", p.Zone, 0)
	optionalMicros(c, "anchor", p.Anchor)
	c.Leave()
}
