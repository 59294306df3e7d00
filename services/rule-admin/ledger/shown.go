package ledger

import (
	"encoding/json"
	"time"
)

// MarshalJSON returns what callers are shown of a top-up, and the audit keeps.
// The first answer to a key says nothing that could change later: what has
// expired is said of those that have, alone.
func (t *TopUp) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		ID           string     `json:"topup_id"`
		Tenant       string     `json:"tenant"`
		Meter        string     `json:"meter"`
		Units        int64      `json:"units"`
		GrantedTotal int64      `json:"granted_total"`
		Priority     int32      `json:"priority"`
		ExpiresAt    *time.Time `json:"expires_at,omitempty"`
		Reason       string     `json:"reason"`
		GrantedAt    time.Time  `json:"granted_at"`
		GrantedBy    string     `json:"granted_by"`
		Version      int64      `json:"version"`
		ExpiredAt    *time.Time `json:"expired_at,omitempty"`
		ExpiredUnits *int64     `json:"expired_units,omitempty"`
	}{
		t.ID, t.Tenant, t.Meter, t.Units, t.GrantedTotal, t.Priority, orNil(t.ExpiresAt), t.Reason, t.GrantedAt, t.GrantedBy, t.Revision,
		orNil(t.ExpiredAt), t.expired(),
	})
}

// First is the top-up as it was when it was made.
func (t TopUp) First() *TopUp {
	t.ExpiredAt, t.ExpiredUnits = time.Time{}, 0
	return &t
}

func (t *TopUp) expired() *int64 {
	if t.ExpiredAt.IsZero() {
		return nil
	}
	return &t.ExpiredUnits
}

func orNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
