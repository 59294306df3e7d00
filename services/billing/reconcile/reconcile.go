// Package reconcile proves the books: what they counted against the distinct events that
// the topic still has, invoices against what was counted, and wallets against their
// ledger. Differences are faults. What is lost, late, set aside, degraded or unattributed
// is no fault and is shown.
package reconcile

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"penstock.dev/services/billing/metering"
)

// A Line names what is compared: one tenant's meter on one day of one billing period.
type Line struct {
	Tenant string    `json:"tenant"`
	Meter  string    `json:"meter"`
	Period time.Time `json:"period_start"`
	Day    time.Time `json:"day"`
}

// A Sum is what is known of a line.
type Sum struct {
	Calls    int64 `json:"calls"`
	Units    int64 `json:"units"`
	Returned int64 `json:"returned"`
	Degraded int64 `json:"degraded"`
	Prepaid  int64 `json:"prepaid"`
	Unpriced int64 `json:"unpriced"`
}

// SumOf is the part of a count that is compared.
func SumOf(c metering.Count) Sum {
	return Sum{c.Calls, c.Units, c.Returned, c.Degraded, c.Prepaid, c.Unpriced}
}

// Plus adds t.
func (s *Sum) Plus(t Sum) {
	s.Calls += t.Calls
	s.Units += t.Units
	s.Returned += t.Returned
	s.Degraded += t.Degraded
	s.Prepaid += t.Prepaid
	s.Unpriced += t.Unpriced
}

// A Difference is a line that the books and the topic disagree about.
type Difference struct {
	Line
	Books  Sum `json:"books"`
	Events Sum `json:"events"`
}

// A Fault is an invoice or a wallet that does not add up.
type Fault struct {
	Tenant string `json:"tenant"` // empty: of all of them
	What   string `json:"what"`
	Is     int64  `json:"is"`
	Want   int64  `json:"want"`
}

// Totals are numbers per tenant, meter and period.
type Totals struct {
	Tenant       string    `json:"tenant"`
	Meter        string    `json:"meter"`
	Period       time.Time `json:"period_start"`
	Net          int64     `json:"net"`
	Late         int64     `json:"late"`
	Degraded     int64     `json:"degraded"`
	SetAside     int64     `json:"set_aside"`
	Unattributed int64     `json:"unattributed"`
}

// A Report is what was found.
type Report struct {
	Read        int64        `json:"events_read"`
	Repeats     int64        `json:"repeats"`
	Unreadable  int64        `json:"unreadable"`
	Since       time.Time    `json:"compared_from"` // days that begin before are not in the topic whole; zero: all are
	Compared    int          `json:"lines_compared"`
	Invoices    int          `json:"invoices_checked"`
	Wallets     int          `json:"wallets_checked"`
	Lost        int64        `json:"lost_events"`
	Totals      []Totals     `json:"totals"`
	Differences []Difference `json:"differences"`
	Faults      []Fault      `json:"faults"`
}

// OK reports whether everything adds up.
func (r *Report) OK() bool { return len(r.Differences) == 0 && len(r.Faults) == 0 }

// Compare returns the lines from since on that differ, in order, and how many there are.
func Compare(books, events map[Line]Sum, since time.Time) (differences []Difference, compared int) {
	all := map[Line]bool{}
	for l := range books {
		all[l] = true
	}
	for l := range events {
		all[l] = true
	}
	for l := range all {
		if l.Day.Before(since) {
			continue
		}
		compared++
		if books[l] != events[l] {
			differences = append(differences, Difference{l, books[l], events[l]})
		}
	}
	slices.SortFunc(differences, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Meter, b.Meter), a.Period.Compare(b.Period), a.Day.Compare(b.Day))
	})
	return differences, compared
}

// Text is the report for a person.
func (r *Report) Text() []string {
	out := []string{
		fmt.Sprintf("read %d events of usage.v1, %d of them repeats, %d unreadable", r.Read, r.Repeats, r.Unreadable),
		fmt.Sprintf("compared %d lines of tenant, meter, period and day%s", r.Compared, from(r.Since)),
		fmt.Sprintf("checked %d invoices and %d wallets", r.Invoices, r.Wallets),
		fmt.Sprintf("lost, by their numbers: %d events", r.Lost),
	}
	for _, t := range r.Totals {
		out = append(out, fmt.Sprintf("%s %s from %s: net %d, late or corrected %d, degraded %d, set aside %d, unattributed %d",
			t.Tenant, t.Meter, t.Period.UTC().Format(time.RFC3339), t.Net, t.Late, t.Degraded, t.SetAside, t.Unattributed))
	}
	for _, d := range r.Differences {
		out = append(out, fmt.Sprintf("DIFFERENCE %s %s from %s, day %s: books %+v, events %+v",
			d.Tenant, d.Meter, d.Period.UTC().Format(time.RFC3339), d.Day.UTC().Format(time.RFC3339), d.Books, d.Events))
	}
	for _, f := range r.Faults {
		out = append(out, fmt.Sprintf("FAULT %s%s is %d, want %d", whose(f.Tenant), f.What, f.Is, f.Want))
	}
	if r.OK() {
		return append(out, "everything adds up")
	}
	return append(out, fmt.Sprintf("%d differences, %d faults", len(r.Differences), len(r.Faults)))
}

func whose(tenant string) string {
	if tenant == "" {
		return ""
	}
	return tenant + ": "
}

func from(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return " from " + t.UTC().Format(time.RFC3339) + " on; the topic does not have what was before"
}
