package metering

// A Count is what one event adds to one meter.
type Count struct {
	Calls    int64
	Units    int64 // consumed
	Returned int64 // given back
	Degraded int64 // of Units: nobody could read the counters
	Prepaid  int64 // net, paid by a wallet
	Unpriced int64 // settlements whose difference nobody counted
}

// Plus adds d to c.
func (c *Count) Plus(d Count) {
	c.Calls += d.Calls
	c.Units += d.Units
	c.Returned += d.Returned
	c.Degraded += d.Degraded
	c.Prepaid += d.Prepaid
	c.Unpriced += d.Unpriced
}

// Net is what is priced: consumed less what was given back and what a wallet paid.
func (c Count) Net() int64 { return c.Units - c.Returned - c.Prepaid }

// A Metered is a Count of a meter.
type Metered struct {
	Meter string
	Count
}

// Counts is what an event adds to meters, each once, in the order of its counters.
// Refusals add nothing.
func (e *Event) Counts() []Metered {
	if e.Verdict.Cut() {
		return nil
	}
	var out []Metered
	seen := false // the default meter
	for i := range e.Counters {
		m := e.Counters[i].Meter
		if !e.Counters[i].Enforced || e.counted(i) {
			continue
		}
		seen = seen || m == DefaultMeter
		if count := e.count(m); count != (Count{}) {
			out = append(out, Metered{m, count})
		}
	}
	if !seen {
		if count := e.uncounted(); count != (Count{}) {
			out = append(out, Metered{DefaultMeter, count})
		}
	}
	return out
}

// counted reports whether a counter before i is of the same meter.
func (e *Event) counted(i int) bool {
	for j := range i {
		if e.Counters[j].Enforced && e.Counters[j].Meter == e.Counters[i].Meter {
			return true
		}
	}
	return false
}

// count is what the event adds to a meter that it has counters of.
func (e *Event) count(meter string) Count {
	var units, prepaid int64
	for i := range e.Counters {
		c := &e.Counters[i]
		if !c.Enforced || c.Meter != meter {
			continue
		}
		units = larger(units, c.Units)
		if c.prepaid() && c.Observed {
			prepaid = larger(prepaid, c.Units)
		}
	}
	count := moved(units)
	count.Prepaid = prepaid
	if e.Verdict.Passed() {
		count.Calls = 1
	}
	if e.Verdict == DegradedAllow {
		count.Degraded = count.Units
	}
	return count
}

// uncounted is what the event adds to the default meter where no counter of it was
// charged.
func (e *Event) uncounted() Count {
	switch {
	case e.Verdict == DegradedAllow:
		return Count{Calls: 1, Units: e.Cost, Degraded: e.Cost}
	case e.Verdict.Passed():
		return Count{Calls: 1, Units: e.Cost}
	case e.Verdict == Refund:
		return Count{Returned: e.Cost}
	case e.Verdict == Settle:
		return Count{Unpriced: 1} // what was charged before is not in the event
	}
	return Count{}
}

func moved(units int64) Count {
	if units < 0 {
		return Count{Returned: -units}
	}
	return Count{Units: units}
}

// larger is the one that is farther from zero, a on a tie.
func larger(a, b int64) int64 {
	if abs(b) > abs(a) {
		return b
	}
	return a
}

func abs(n int64) int64 {
	if n < 0 {
		return -n
	}
	return n
}

// Reason is why a call was cut. The values are those of account.Reason.
func (e *Event) Reason() string {
	switch {
	case e.Verdict == Blocked:
		return "blocked"
	case e.Verdict == DegradedDeny:
		return "store-unavailable"
	case e.Algorithm == "quota":
		return "quota-exceeded"
	case e.Algorithm == "overdraft_wallet":
		return "wallet-empty"
	case e.Algorithm != "":
		return "rate-limited"
	}
	return "refused"
}
