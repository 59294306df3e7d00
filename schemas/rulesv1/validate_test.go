package rulesv1_test

import (
	"errors"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"penstock.dev/schemas"
	"penstock.dev/schemas/internal/schemastest"
	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/wire"
)

const exact = 1<<53 - 1

// A fault is a sample with one field changed.
type fault struct {
	sample string
	field  string // which the error must name; empty: the change is within bounds
	change func(*rulesv1.Record)
}

type rec = *rulesv1.Record

func text(n int) string { return strings.Repeat("x", n) }

var identityFaults = []fault{
	{"user", "kind", func(r rec) { r.Kind = rulesv1.KindUnknown }},
	{"user", "kind", func(r rec) { r.Kind = "budget" }},
	{"user", "kind", func(r rec) { r.Kind = "" }},
	{"user", "kind", func(r rec) { r.User = nil }},
	{"user", "kind", func(r rec) { r.Grant = &rulesv1.Grant{} }},
	{"user", "kind", func(r rec) { r.User, r.Tenant = nil, &rulesv1.Tenant{} }},
	{"user", "", func(r rec) { r.ID = text(128) }},
	{"user", "", func(r rec) { r.ID = "AZaz09._~-" }},
	{"user", "id", func(r rec) { r.ID = text(129) }},
	{"user", "id", func(r rec) { r.ID = "" }},
	{"user", "id", func(r rec) { r.ID = ".." }},
	{"user", "id", func(r rec) { r.ID = "." }},
	{"user", "id", func(r rec) { r.ID = "a/b" }},
	{"user", "id", func(r rec) { r.ID = "acme:credits" }},
	{"user", "id", func(r rec) { r.ID = "ü" }},
	{"wallet", "id", func(r rec) { r.ID = "acme" }},
	{"wallet", "id", func(r rec) { r.ID = "acme:CREDITS" }},
	{"wallet", "id", func(r rec) { r.ID = ":credits" }},
	{"wallet", "", func(r rec) {
		r.Wallet.Tenant, r.Wallet.Meter = text(128), text(64)
		r.ID = text(128) + ":" + text(64)
	}},
	{"user", "version", func(r rec) { r.Version = 0 }},
	{"user", "version", func(r rec) { r.Version = exact + 1 }},
	{"user", "", func(r rec) { r.Version, r.Revision = exact, exact }},
	{"user", "revision", func(r rec) { r.Revision = -1 }},
	{"user", "revision", func(r rec) { r.Revision = math.MaxInt64 }},
	{"user", "changed_at", func(r rec) { r.ChangedAt = math.MinInt64 }},
	{"user", "changed_at", func(r rec) { r.ChangedAt = 253402300800_000000 }},
	{"user", "", func(r rec) { r.ChangedAt = 253402300799_999999 }},
	{"user", "", func(r rec) { r.ChangedAt = -62135596800_000000 }},
	{"user", "changed_by", func(r rec) { r.ChangedBy = text(257) }},
	{"user", "changed_by", func(r rec) { r.ChangedBy = "\xff" }},
	{"user", "requires", func(r rec) { r.Requires = slices.Repeat([]string{"a"}, 9) }},
	{"user", "requires[1]", func(r rec) { r.Requires = []string{"match.region", ""} }},
	{"user", "requires[0]", func(r rec) { r.Requires = []string{text(65)} }},
	{"user", "requires[0]", func(r rec) { r.Requires = []string{"Region"} }},
	{"user", "", func(r rec) { r.Requires = slices.Repeat([]string{"a"}, 8) }},
}

var objectFaults = []fault{
	{"tenant", "tenant.name", func(r rec) { r.Tenant.Name = text(257) }},
	{"tenant", "", func(r rec) { *r.Tenant = rulesv1.Tenant{Zone: "UTC"} }},
	{"tenant", "tenant.plan", func(r rec) { r.Tenant.Plan = text(129) }},
	{"tenant", "tenant.zone", func(r rec) { r.Tenant.Zone = "" }},
	{"tenant", "tenant.zone", func(r rec) { r.Tenant.Zone = text(65) }},
	{"tenant", "tenant.zone", func(r rec) { r.Tenant.Zone = "Europe Istanbul" }},
	{"tenant", "tenant.anchor", func(r rec) { r.Tenant.Anchor = schemastest.Ptr(int64(math.MaxInt64)) }},
	{"tenant", "tenant.currency", func(r rec) { r.Tenant.Currency = "usd" }},
	{"tenant", "tenant.currency", func(r rec) { r.Tenant.Currency = "US" }},
	{"tenant", "tenant.previous_periods", func(r rec) {
		r.Tenant.PreviousPeriods = slices.Repeat([]rulesv1.FormerPeriod{{Zone: "UTC"}}, 17)
	}},
	{"tenant", "tenant.previous_periods[1].zone", func(r rec) { r.Tenant.PreviousPeriods[1].Zone = "" }},
	{"tenant", "tenant.previous_periods[1].anchor", func(r rec) { r.Tenant.PreviousPeriods[1].Anchor = schemastest.Ptr(int64(math.MinInt64)) }},
	{"tenant", "tenant.previous_periods[1].until", func(r rec) { r.Tenant.PreviousPeriods[1].Until = math.MaxInt64 }},
	{"tenant", "tenant.previous_periods[1].until", func(r rec) { r.Tenant.PreviousPeriods[1].Until = 0 }},
	{"application", "application.tenant", func(r rec) { r.Application.Tenant = "" }},
	{"application", "application.name", func(r rec) { r.Application.Name = text(257) }},
	{"user", "user.tenant", func(r rec) { r.User.Tenant = "a b" }},
	{"user", "user.name", func(r rec) { r.User.Name = "\xc3\x28" }},
	{"api_key", "api_key.tenant", func(r rec) { r.APIKey.Tenant = "" }},
	{"api_key", "api_key.application", func(r rec) { r.APIKey.Application = text(129) }},
	{"api_key", "api_key.user", func(r rec) { r.APIKey.User = text(257) }},
	{"api_key", "", func(r rec) { r.APIKey.User = "Uma Thurman / ü" }},
	{"api_key", "api_key.digest", func(r rec) { r.APIKey.Digest = make([]byte, 31) }},
	{"api_key", "api_key.digest", func(r rec) { r.APIKey.Digest = nil }},
	{"service", "service.name", func(r rec) { r.Service.Name = text(257) }},
	{"service", "service.upstream", func(r rec) { r.Service.Upstream = "" }},
	{"service", "service.upstream", func(r rec) { r.Service.Upstream = "ftp://a" }},
	{"service", "service.upstream", func(r rec) { r.Service.Upstream = "http://" + text(2042) }},
	{"service", "service.hosts", func(r rec) { r.Service.Hosts = slices.Repeat([]string{"a"}, 65) }},
	{"service", "service.hosts[0]", func(r rec) { r.Service.Hosts[0] = "" }},
	{"service", "service.hosts[0]", func(r rec) { r.Service.Hosts[0] = text(254) }},
	{"service", "service.hosts[0]", func(r rec) { r.Service.Hosts[0] = "Pay.example.org" }},
	{"service", "service.hosts[0]", func(r rec) { r.Service.Hosts[0] = "pay.example.org:80" }},
	{"service", "service.hosts[0]", func(r rec) { r.Service.Hosts[0] = "[::1]:80" }},
	{"service", "service.path_prefix", func(r rec) { r.Service.PathPrefix = "payments" }},
	{"service", "service.path_prefix", func(r rec) { r.Service.PathPrefix = "/" + text(1024) }},
	{"service", "service.cors.allowed_origins", func(r rec) { r.Service.Cors.AllowedOrigins = slices.Repeat([]string{"*"}, 65) }},
	{"service", "service.cors.allowed_origins[0]", func(r rec) { r.Service.Cors.AllowedOrigins[0] = "" }},
	{"service", "service.connect_timeout_us", func(r rec) { r.Service.ConnectTimeoutUS = 600_000_001 }},
	{"service", "service.response_timeout_us", func(r rec) { r.Service.ResponseTimeoutUS = -1 }},
	{"service", "service.idle_timeout_us", func(r rec) { r.Service.IdleTimeoutUS = 86_400_000_001 }},
	{"service", "", func(r rec) { *r.Service = rulesv1.Service{Upstream: "https://a"} }},
	{"endpoint", "endpoint.service", func(r rec) { r.Endpoint.Service = "" }},
	{"endpoint", "endpoint.method", func(r rec) { r.Endpoint.Method = text(33) }},
	{"endpoint", "endpoint.path", func(r rec) { r.Endpoint.Path = "" }},
	{"endpoint", "endpoint.path", func(r rec) { r.Endpoint.Path = text(1025) }},
	{"endpoint", "endpoint.cost", func(r rec) { r.Endpoint.Cost = -1 }},
	{"endpoint", "", func(r rec) { r.Endpoint.Cost = 0 }},
	{"endpoint", "endpoint.refund_on", func(r rec) { r.Endpoint.RefundOn = slices.Repeat([]string{"503"}, 17) }},
	{"endpoint", "endpoint.refund_on[0]", func(r rec) { r.Endpoint.RefundOn[0] = text(17) }},
	{"wallet", "wallet.tenant", func(r rec) { r.Wallet.Tenant = "other" }},
	{"wallet", "wallet.tenant", func(r rec) { r.Wallet.Tenant = "" }},
	{"wallet", "wallet.meter", func(r rec) { r.Wallet.Meter = "" }},
	{"wallet", "wallet.granted_total", func(r rec) { r.Wallet.GrantedTotal = -1 }},
	{"wallet", "wallet.granted_total", func(r rec) { r.Wallet.GrantedTotal = exact + 1 }},
	{"grant", "grant.tenant", func(r rec) { r.Grant.Tenant = "" }},
	{"grant", "grant.meter", func(r rec) { r.Grant.Meter = "Credits" }},
	{"grant", "grant.units", func(r rec) { r.Grant.Units = 0 }},
	{"grant", "grant.priority", func(r rec) { r.Grant.Priority = 1_000_001 }},
	{"grant", "grant.granted_at", func(r rec) { r.Grant.GrantedAt = math.MaxInt64 }},
	{"grant", "grant.expires_at", func(r rec) { r.Grant.ExpiresAt = schemastest.Ptr(int64(math.MaxInt64)) }},
	{"grant", "grant.expired_units", func(r rec) { r.Grant.ExpiredUnits = r.Grant.Units + 1 }},
	{"grant", "grant.reason", func(r rec) { r.Grant.Reason = text(257) }},
}

var planFaults = []fault{
	{"plan", "", func(r rec) { *r.Plan = rulesv1.Plan{} }},
	{"plan", "plan.name", func(r rec) { r.Plan.Name = text(257) }},
	{"plan", "plan.fee.amount", func(r rec) { r.Plan.Fee.Amount = -1 }},
	{"plan", "plan.fee.currency", func(r rec) { r.Plan.Fee.Currency = "" }},
	{"plan", "plan.fee.period", func(r rec) { r.Plan.Fee.Period = rulesv1.PeriodUnitUnknown }},
	{"plan", "plan.fee.period", func(r rec) { r.Plan.Fee.Period = "" }},
	{"plan", "plan.included", func(r rec) { r.Plan.Included = make([]rulesv1.Included, 65) }},
	{"plan", "plan.included[0].meter", func(r rec) { r.Plan.Included[0].Meter = "" }},
	{"plan", "plan.included[1].meter", func(r rec) { r.Plan.Included = append(r.Plan.Included, r.Plan.Included[0]) }},
	{"plan", "plan.included[0].units", func(r rec) { r.Plan.Included[0].Units = -1 }},
	{"plan", "plan.overage", func(r rec) { r.Plan.Overage = make([]rulesv1.Overage, 257) }},
	{"plan", "plan.overage[0].meter", func(r rec) { r.Plan.Overage[0].Meter = "a b" }},
	{"plan", "plan.overage[0].up_to", func(r rec) { r.Plan.Overage[0].UpTo = schemastest.Ptr(int64(0)) }},
	{"plan", "plan.overage[1].up_to", func(r rec) { r.Plan.Overage[1].UpTo = r.Plan.Overage[0].UpTo }},
	{"plan", "plan.overage[1].meter", func(r rec) { r.Plan.Overage[0].UpTo = nil }},
	{"plan", "plan.overage[1].unit_price", func(r rec) { r.Plan.Overage[1].UnitPrice = "" }},
	{"plan", "plan.overage[1].unit_price", func(r rec) { r.Plan.Overage[1].UnitPrice = "-1" }},
	{"plan", "plan.overage[1].unit_price", func(r rec) { r.Plan.Overage[1].UnitPrice = "1e3" }},
	{"plan", "plan.overage[1].unit_price", func(r rec) { r.Plan.Overage[1].UnitPrice = "1." }},
	{"plan", "plan.overage[1].unit_price", func(r rec) { r.Plan.Overage[1].UnitPrice = "1234567890123" }},
	{"plan", "plan.overage[1].unit_price", func(r rec) { r.Plan.Overage[1].UnitPrice = "0.1234567890123" }},
	{"plan", "", func(r rec) { r.Plan.Overage[1].UnitPrice = "123456789012.123456789012" }},
}

var ruleFaults = []fault{
	{"rule-rate", "rule.name", func(r rec) { r.Rule.Name = text(257) }},
	{"rule-rate", "rule.mode", func(r rec) { r.Rule.Mode = "" }},
	{"rule-rate", "rule.mode", func(r rec) { r.Rule.Mode = "Enforce" }},
	{"rule-quota", "rule.period.unit", func(r rec) { r.Rule.Period.Unit = "fortnight" }},
	{"rule-rate", "rule.kind", func(r rec) { r.Rule.Kind = rulesv1.RuleKindUnknown }},
	{"rule-rate", "rule.algorithm", func(r rec) { r.Rule.Algorithm = rulesv1.AlgorithmUnknown }},
	{"rule-rate", "rule.algorithm", func(r rec) { r.Rule.Algorithm = rulesv1.AlgorithmQuota }},
	{"rule-block", "rule.algorithm", func(r rec) { r.Rule.Algorithm = rulesv1.AlgorithmGCRA }},
	{"rule-rate", "rule.subject", func(r rec) { r.Rule.Subject = []rulesv1.Dimension{rulesv1.DimensionUnknown} }},
	{"rule-rate", "rule.subject", func(r rec) { r.Rule.Subject = []rulesv1.Dimension{"service"} }},
	{"rule-rate", "rule.subject[1]", func(r rec) { r.Rule.Subject = []rulesv1.Dimension{rulesv1.DimensionIP, rulesv1.DimensionTenant} }},
	{"rule-rate", "rule.subject[1]", func(r rec) { r.Rule.Subject = []rulesv1.Dimension{rulesv1.DimensionIP, rulesv1.DimensionIP} }},
	{"rule-rate", "rule.subject", func(r rec) { r.Rule.Subject = slices.Repeat([]rulesv1.Dimension{rulesv1.DimensionIP}, 9) }},
	{"rule-rate", "", func(r rec) { r.Rule.Subject, r.Rule.Match = nil, nil }},
	{"rule-rate", "rule.match.tenant", func(r rec) { r.Rule.Match.Tenant = text(257) }},
	{"rule-rate", "rule.match.plan", func(r rec) { r.Rule.Match.Plan = text(129) }},
	{"rule-rate", "rule.match.application", func(r rec) { r.Rule.Match.Application = text(257) }},
	{"rule-rate", "rule.match.user", func(r rec) { r.Rule.Match.User = "\xff" }},
	{"rule-rate", "rule.match.api_key", func(r rec) { r.Rule.Match.APIKey = text(257) }},
	{"rule-rate", "rule.match.service", func(r rec) { r.Rule.Match.Service = "a/b" }},
	{"rule-rate", "rule.match.endpoint", func(r rec) { r.Rule.Match.Endpoint = text(129) }},
	{"rule-rate", "rule.match.networks", func(r rec) { r.Rule.Match.Networks = slices.Repeat([]string{"::/0"}, 257) }},
	{"rule-rate", "rule.match.networks[1]", func(r rec) { r.Rule.Match.Networks = []string{"::/0", "198.51.100.0"} }},
	{"rule-rate", "rule.match.networks[0]", func(r rec) { r.Rule.Match.Networks = []string{"198.51.100.0/33"} }},
	{"rule-rate", "rule.condition", func(r rec) { r.Rule.Condition = text(4097) }},
	{"rule-rate", "rule.limit", func(r rec) { r.Rule.Limit = nil }},
	{"rule-rate", "rule.limit", func(r rec) { r.Rule.Limit = schemastest.Ptr(int64(-1)) }},
	{"rule-rate", "", func(r rec) { r.Rule.Limit = schemastest.Ptr(int64(0)) }},
	{"rule-quota", "", func(r rec) { r.Rule.Limit = schemastest.Ptr(int64(exact)) }},
	{"rule-block", "rule.limit", func(r rec) { r.Rule.Limit = schemastest.Ptr(int64(1)) }},
	{"rule-wallet", "rule.limit", func(r rec) { r.Rule.Wallet, r.Rule.Period = rulesv1.WalletModePrepaid, nil }},
	{"rule-wallet", "", func(r rec) { r.Rule.Wallet, r.Rule.Period, r.Rule.Limit = rulesv1.WalletModePrepaid, nil, nil }},
	{"rule-rate", "rule.window_us", func(r rec) { r.Rule.WindowUS = 0 }},
	{"rule-rate", "rule.window_us", func(r rec) { r.Rule.WindowUS = 31_622_400_000_001 }},
	{"rule-quota", "rule.window_us", func(r rec) { r.Rule.WindowUS = 1 }},
	{"rule-rate", "rule.burst", func(r rec) { r.Rule.Burst = nil }},
	{"rule-rate", "rule.burst", func(r rec) { r.Rule.Burst = schemastest.Ptr(int64(1_000_000_001)) }},
	{"rule-rate", "rule.burst", func(r rec) { r.Rule.Algorithm = rulesv1.AlgorithmFixedWindow }},
	{"rule-quota", "rule.period", func(r rec) { r.Rule.Period = nil }},
	{"rule-rate", "rule.period", func(r rec) { r.Rule.Period = schemastest.Quota().Rule.Period }},
	{"rule-quota", "rule.period.unit", func(r rec) { r.Rule.Period.Unit = "" }},
	{"rule-quota", "rule.period.alignment", func(r rec) { r.Rule.Period.Alignment = rulesv1.AlignmentUnknown }},
	{"rule-quota", "rule.period.count", func(r rec) { r.Rule.Period.Count = 0 }},
	{"rule-quota", "rule.period.count", func(r rec) { r.Rule.Period.Count = 1001 }},
	{"rule-quota", "rule.period.zone", func(r rec) { r.Rule.Period.Zone = "../../etc passwd" }},
	{"rule-quota", "", func(r rec) { r.Rule.Period.Zone = "" }},
	{"rule-quota", "rule.period.anchor", func(r rec) { r.Rule.Period.Anchor = schemastest.Ptr(int64(math.MinInt64)) }},
	{"rule-quota", "rule.previous_period.unit", func(r rec) { r.Rule.PreviousPeriod.Unit = rulesv1.PeriodUnitUnknown }},
	{"rule-quota", "rule.previous_period.alignment", func(r rec) { r.Rule.PreviousPeriod.Alignment = "" }},
	{"rule-quota", "rule.previous_period.count", func(r rec) { r.Rule.PreviousPeriod.Count = -1 }},
	{"rule-quota", "rule.previous_period.zone", func(r rec) { r.Rule.PreviousPeriod.Zone = text(65) }},
	{"rule-quota", "rule.previous_period.anchor", func(r rec) { r.Rule.PreviousPeriod.Anchor = schemastest.Ptr(int64(math.MaxInt64)) }},
	{"rule-quota", "rule.period_effective_at", func(r rec) { r.Rule.PreviousPeriod = nil }},
	{"rule-quota", "rule.period_effective_at", func(r rec) { r.Rule.PeriodEffectiveAt = schemastest.Ptr(int64(math.MaxInt64)) }},
	{"rule-quota", "", func(r rec) { r.Rule.PeriodEffectiveAt = nil }},
	{"rule-rate", "rule.wallet", func(r rec) { r.Rule.Wallet = rulesv1.WalletModePrepaid }},
	{"rule-rate", "rule.wallet", func(r rec) { r.Rule.Wallet = "" }},
	{"rule-wallet", "rule.wallet", func(r rec) { r.Rule.Wallet, r.Rule.Period = rulesv1.WalletModeNone, nil }},
	{"rule-rate", "rule.meter", func(r rec) { r.Rule.Meter = "" }},
	{"rule-rate", "rule.meter", func(r rec) { r.Rule.Meter = text(65) }},
	{"rule-rate", "rule.cost", func(r rec) { r.Rule.Cost = schemastest.Ptr(int64(exact + 1)) }},
	{"rule-rate", "rule.on_failure", func(r rec) { r.Rule.OnFailure = "" }},
	{"rule-quota", "rule.thresholds_percent", func(r rec) { r.Rule.ThresholdsPercent = make([]int32, 17) }},
	{"rule-quota", "rule.thresholds_percent[0]", func(r rec) { r.Rule.ThresholdsPercent[0] = 0 }},
	{"rule-quota", "rule.thresholds_percent[1]", func(r rec) { r.Rule.ThresholdsPercent[1] = 101 }},
	{"rule-quota", "rule.thresholds_percent[1]", func(r rec) { r.Rule.ThresholdsPercent[1] = 80 }},
	{"rule-quota", "rule.thresholds_left", func(r rec) { r.Rule.ThresholdsLeft = make([]int64, 17) }},
	{"rule-quota", "rule.thresholds_left[1]", func(r rec) { r.Rule.ThresholdsLeft[1] = 100 }},
	{"rule-quota", "rule.thresholds_left[1]", func(r rec) { r.Rule.ThresholdsLeft[1] = -1 }},
	{"rule-quota", "", func(r rec) { r.Rule.ThresholdsLeft[1] = 0 }},
	{"rule-rate", "rule.priority", func(r rec) { r.Rule.Priority = -1_000_001 }},
	{"rule-rate", "rule.max_delay_us", func(r rec) { r.Rule.MaxDelayUS = 60_000_001 }},
	{"rule-rate", "rule.lease.units", func(r rec) { r.Rule.Lease.Units = 0 }},
	{"rule-rate", "rule.lease.ttl_us", func(r rec) { r.Rule.Lease.TTLUS = 3_600_000_001 }},
	{"rule-quota", "rule.lease", func(r rec) { r.Rule.Lease = &rulesv1.Lease{Units: 1, TTLUS: 1} }},
	{"rule-quota", "rule.valid_from", func(r rec) { r.Rule.ValidFrom = schemastest.Ptr(int64(math.MinInt64)) }},
	{"rule-quota", "rule.valid_to", func(r rec) { r.Rule.ValidTo = schemastest.Ptr(int64(math.MaxInt64)) }},
}

// TestValidate guarantees that a record is held to every bound of its schema's
// docs, and that the error names the field.
func TestValidate(t *testing.T) {
	t.Parallel()

	for _, f := range slices.Concat(identityFaults, objectFaults, planFaults, ruleFaults) {
		r, ok := schemastest.Rules()[f.sample]
		if !ok {
			t.Fatalf("there is no sample %s", f.sample)
		}
		if err := r.Validate(); err != nil {
			t.Fatalf("sample %s: %v", f.sample, err)
		}
		f.change(&r)
		err := r.Validate()
		if f.field == "" {
			if err != nil {
				t.Errorf("%s, changed within bounds: %v", f.sample, err)
			}
			continue
		}
		var fe *wire.FieldError
		if !errors.As(err, &fe) || fe.Field != f.field || !errors.Is(err, wire.ErrPoison) {
			t.Errorf("%s, changed in %s: %v, want an error of that field", f.sample, f.field, err)
		}
		if _, err := rulesv1.AppendRecord(nil, &r); err == nil {
			t.Errorf("%s, changed in %s, is written", f.sample, f.field)
		}
	}
}

// TestValidateReach guarantees that the table above breaks the bounds of every
// field that has any, so that none is forgotten when a schema grows.
func TestValidateReach(t *testing.T) {
	t.Parallel()

	index := regexp.MustCompile(`\[\d+\]`)
	broken := map[string]bool{}
	for _, f := range slices.Concat(identityFaults, objectFaults, planFaults, ruleFaults) {
		broken[index.ReplaceAllString(f.field, "")] = true
	}
	paths, err := schemastest.Bounded(schemas.RulesV1)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if !broken[path] {
			t.Errorf("no case breaks the bounds of %s", path)
		}
	}
	if len(paths) < 80 {
		t.Errorf("%d fields with bounds, want more than 80: the search no longer finds them", len(paths))
	}
}
