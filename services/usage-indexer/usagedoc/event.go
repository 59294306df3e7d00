package usagedoc

// An Event is one event as the index wants it. Its fields are those of usage.v1,
// with the same meanings; empty strings are absent.
type Event struct {
	TS         int64 // when it was decided; µs since 1970 UTC, years 1 to 9999
	EventID    [16]byte
	DecisionID [16]byte
	StreamID   [16]byte
	Sequence   int64
	Decision   string // e.g. "DENY"
	Status     int32  // 0: none was answered, the event is a correction

	Tenant, Application, User, APIKey string
	APIKeyHash                        []byte // first bytes of a digest, shown in hexadecimal
	ClientAddress                     string
	Service, Endpoint                 string
	Method, PathTemplate              string
	RuleID, Algorithm                 string

	Cost         int64
	LatencyUS    int64 // µs, not negative
	GatewayID    string
	RulesVersion int64
	Upstream     *Upstream // nil: not proxied, or never reached
	Counters     []Counter
	RefundID     string
	Labels       string // JSON text of an object of strings; anything else is left out
}

// An Upstream is what the service behind the gateway answered.
type Upstream struct {
	Status     int32 // 0: none came
	DurationUS int64 // µs, not negative
}

// A Counter is a quota or wallet counter after the event.
type Counter struct {
	Key, Meter, Kind, RuleID, Mode string
	Soft                           bool
	Limit, Units                   int64
	Consumed, Refunded             int64
	Observed                       bool  // false: Consumed and Refunded say nothing and are left out
	PeriodStart, PeriodEnd         int64 // µs since 1970 UTC; 0: none
}

// A Type is how a field is searched.
type Type uint8

// The types.
const (
	Keyword Type = iota // text as it is, to match and to count by
	Date                // an instant, in full: 2026-11-30T09:00:00.000000Z
	Whole               // a whole number
	Decimal             // a number with a fraction
	Flag                // true or false
	Opaque              // kept with the document and not searched, whatever is inside
)

// A Field is one field of a document. The fields of counters are written
// counters.name.
type Field struct {
	Name string
	Type Type
}

// Fields returns every field that a document can have, and no others.
func Fields() []Field {
	return []Field{
		{"ts", Date},
		{"eventId", Keyword},
		{"decisionId", Keyword},
		{"decision", Keyword},
		{"statusCode", Whole},
		{"tenantId", Keyword},
		{"applicationId", Keyword},
		{"userId", Keyword},
		{"apiKeyId", Keyword},
		{"apiKeyHash", Keyword},
		{"clientAddress", Keyword},
		{"service", Keyword},
		{"endpoint", Keyword},
		{"method", Keyword},
		{"pathTemplate", Keyword},
		{"ruleId", Keyword},
		{"algo", Keyword},
		{"cost", Whole},
		{"latencyMs", Decimal},
		{"upstreamStatus", Whole},
		{"upstreamMs", Decimal},
		{"gatewayId", Keyword},
		{"rulesVersion", Whole},
		{"streamId", Keyword},
		{"sequence", Whole},
		{"refundId", Keyword},
		{"labels", Opaque},
		{"labelPairs", Keyword},
		{"counters.key", Keyword},
		{"counters.meter", Keyword},
		{"counters.kind", Keyword},
		{"counters.ruleId", Keyword},
		{"counters.mode", Keyword},
		{"counters.soft", Flag},
		{"counters.limit", Whole},
		{"counters.units", Whole},
		{"counters.consumed", Whole},
		{"counters.refunded", Whole},
		{"counters.observed", Flag},
		{"counters.periodStart", Date},
		{"counters.periodEnd", Date},
	}
}
