package decide

import (
	"time"

	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

type spanCache struct{}

func (t *Tenant) span(r *rule.Rule, at time.Time) period.Span { return period.Span{} }
