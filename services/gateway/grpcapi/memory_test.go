package grpcapi_test

import (
	"fmt"
	"sync"
	"testing"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/grpcapi"
)

// TestMemoryIsUsedAgain guarantees that calls which are answered in memory that
// others gave back have their own answers, and that what is told of them does not
// change when that memory is used again.
func TestMemoryIsUsedAgain(t *testing.T) {
	t.Parallel()

	const callers, calls, most = 8, 40, 30
	s := newServer(t, grpcapi.H2)
	s.monthly("month", most)
	var all sync.WaitGroup
	for i := range callers {
		tenant := fmt.Sprintf("tenant-%d", i)
		all.Go(func() {
			for n := range calls {
				out, err := s.limits.ShouldRateLimit(s.ctx(), oneDescriptor("tenant", tenant, "user", fmt.Sprint("u", n), "n", fmt.Sprint(n)))
				if err != nil {
					t.Error(err)
					return
				}
				if got := out.GetStatuses()[0]; got.GetLimitRemaining() != uint32(max(0, most-1-n)) || (len(out.GetRawBody()) > 0) != (n >= most) {
					t.Errorf("%s, call %d: %v", tenant, n, out)
				}
			}
		})
	}
	all.Wait()
	seen := map[string]int{}
	for _, u := range s.events() {
		n := seen[u.Tenant]
		seen[u.Tenant]++
		counters := u.AppendCounters(nil)
		if len(counters) != 1 || counters[0].Identity.Tenant != u.Tenant || counters[0].Consumed != int64(min(n+1, most)) || counters[0].Rule.ID != "month" {
			t.Errorf("event %d of %s: %+v", n, u.Tenant, counters)
		}
		if want := fmt.Sprintf(`{"n":"%d"}`, n); u.Labels != want || u.User != fmt.Sprint("u", n) || u.Service != "payments" || u.RuleID != "month" || u.ID == [16]byte{} ||
			(u.Verdict == decide.VerdictDeny) != (n >= most) {
			t.Errorf("event %d of %s: %+v", n, u.Tenant, u)
		}
	}
	if len(seen) != callers {
		t.Errorf("events of %v", seen)
	}
}
