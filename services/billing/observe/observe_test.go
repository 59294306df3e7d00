package observe_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"penstock.dev/services/billing/observe"
)

// TestTended guarantees that what the books say is exposed, and that a round that failed
// leaves the last of it.
func TestTended(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := observe.New(reg, []string{"usage"})
	m.Tended(2, observe.Survey{Missing: 5, Lost: 3, Flagged: 1, Overdue: 4, Accounts: 7}, nil)
	m.Tended(1, observe.Survey{}, errors.New("away"))
	want := `# HELP penstock_billing_finalize_faults_total Rounds in which an invoice that was due could not be made.
# TYPE penstock_billing_finalize_faults_total counter
penstock_billing_finalize_faults_total 1
# HELP penstock_billing_invoices_total Invoices made final by this process.
# TYPE penstock_billing_invoices_total counter
penstock_billing_invoices_total 3
# HELP penstock_billing_lost_events Events that gateways numbered and that have not come for 10 minutes: used and not billed.
# TYPE penstock_billing_lost_events gauge
penstock_billing_lost_events 3
# HELP penstock_billing_overdue_periods Billing periods that should be final and are not, at the last look.
# TYPE penstock_billing_overdue_periods gauge
penstock_billing_overdue_periods 4
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "penstock_billing_invoices_total", "penstock_billing_finalize_faults_total",
		"penstock_billing_lost_events", "penstock_billing_overdue_periods"); err != nil {
		t.Error(err)
	}
}

// TestRequestSeconds guarantees the unit: a tenth of a second is 0.1.
func TestRequestSeconds(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := observe.New(reg, []string{"usage"})
	m.Request("usage", 404, 100*time.Millisecond)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		switch f.GetName() {
		case "penstock_billing_request_seconds":
			if got := f.GetMetric()[0].GetHistogram().GetSampleSum(); got != 0.1 {
				t.Errorf("100 ms are %v", got)
			}
		case "penstock_billing_requests_total":
			if got := f.GetMetric()[0].GetLabel()[1].GetValue(); got != "4xx" {
				t.Errorf("404 is %s", got)
			}
		}
	}
}
