package rulesv1_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"penstock.dev/schemas"
	"penstock.dev/schemas/internal/schemastest"
	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/wire"
)

func newDecoder() *rulesv1.Decoder {
	return rulesv1.NewDecoder(schemastest.IDs(rulesv1.Subject, schemas.RulesV1))
}

// TestKey guarantees that a key names its object and nothing else does: what Key
// makes, ParseKey takes apart, and what no writer makes is poison.
func TestKey(t *testing.T) {
	t.Parallel()

	for name, r := range schemastest.Rules() {
		kind, id, err := rulesv1.ParseKey([]byte(rulesv1.Key(r.Kind, r.ID)))
		if err != nil || kind != r.Kind || id != r.ID {
			t.Errorf("%s: ParseKey = %s, %s, %v", name, kind, id, err)
		}
	}
	tests := []struct {
		name, key string
		want      error
	}{
		{"nothing", "", wire.ErrPoison},
		{"no kind", "/a", wire.ErrPoison},
		{"no id", "rule/", wire.ErrPoison},
		{"no slash", "rule", wire.ErrPoison},
		{"a slash in the id", "rule/a/b", wire.ErrPoison},
		{"a kind in upper case", "Rule/a", wire.ErrPoison},
		{"the kind that stands for newer ones", "UNKNOWN/a", wire.ErrPoison},
		{"a long kind", strings.Repeat("k", 65) + "/a", wire.ErrPoison},
		{"a long id", "rule/" + strings.Repeat("a", 129), wire.ErrPoison},
		{"an id that climbs", "rule/..", wire.ErrPoison},
		{"a wallet without a meter", "wallet/acme", wire.ErrPoison},
		{"a newer kind", "budget/a", wire.ErrSkip},
		{"a newer kind with ids of its own form", "budget/acme:a:b/c", wire.ErrSkip},
		{"a newer kind and no UTF-8", "budget/\xff", wire.ErrPoison},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			kind, _, err := rulesv1.ParseKey([]byte(tt.key))
			if !errors.Is(err, tt.want) || kind != rulesv1.KindUnknown {
				t.Errorf("ParseKey(%q) = %s, %v, want %v", tt.key, kind, err, tt.want)
			}
		})
	}
}

// TestVersionHeader guarantees that a tombstone's version survives its header,
// and that a header which holds none is poison.
func TestVersionHeader(t *testing.T) {
	t.Parallel()

	for _, v := range []int64{1, 812, exact} {
		if got, err := rulesv1.ParseVersion(rulesv1.FormatVersion(v)); got != v || err != nil {
			t.Errorf("ParseVersion(FormatVersion(%d)) = %d, %v", v, got, err)
		}
	}
	for _, s := range []string{"", "0", "-1", "+1", "1.0", " 1", "0x10", "9007199254740992", strings.Repeat("9", 100)} {
		if v, err := rulesv1.ParseVersion([]byte(s)); !errors.Is(err, wire.ErrPoison) {
			t.Errorf("ParseVersion(%q) = %d, %v, want %v", s, v, err, wire.ErrPoison)
		}
	}
}

// TestDecodeWants guarantees that a good record under another object's key, and
// a value that is none, are poison and leave nothing to act on.
func TestDecodeWants(t *testing.T) {
	t.Parallel()

	r := schemastest.Quota()
	body, err := rulesv1.AppendRecord(nil, &r)
	if err != nil {
		t.Fatal(err)
	}
	value := wire.Frame(nil, 1, body)
	tests := []struct {
		name, key string
		value     []byte
	}{
		{"another id", "rule/other", value},
		{"another kind", "user/acme-month", value},
		{"a newer kind", "budget/acme-month", value},
		{"no key", "", value},
		{"a tombstone", "rule/acme-month", nil},
		{"no header", "rule/acme-month", value[:4]},
		{"another framing", "rule/acme-month", append([]byte{0xc3}, value[1:]...)},
		{"no body", "rule/acme-month", value[:5]},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			got, err := newDecoder().Decode(t.Context(), []byte(tt.key), tt.value)
			if !errors.Is(err, wire.ErrPoison) || !cmp.Equal(got, rulesv1.Record{}) {
				t.Errorf("Decode = %+v, %v, want %v", got, err, wire.ErrPoison)
			}
		})
	}
	if got, err := newDecoder().Decode(t.Context(), []byte("rule/acme-month"), value); err != nil || !cmp.Equal(got, r) {
		t.Errorf("the record itself: %+v, %v", got, err)
	}
}

// TestDecodeWithoutRegistry guarantees that a registry which is away does not
// make a record poison: the same bytes are read once it is back.
func TestDecodeWithoutRegistry(t *testing.T) {
	t.Parallel()

	r := schemastest.Quota()
	body, err := rulesv1.AppendRecord(nil, &r)
	if err != nil {
		t.Fatal(err)
	}
	registry := &flaky{err: errors.New("connection refused")}
	d := rulesv1.NewDecoder(wire.NewIDs(registry, rulesv1.Subject))
	_, err = d.Decode(t.Context(), []byte("rule/acme-month"), wire.Frame(nil, 7, body))
	if !errors.Is(err, registry.err) || errors.Is(err, wire.ErrPoison) {
		t.Errorf("registry away: %v, want %v", err, registry.err)
	}
	registry.err = nil
	if got, err := d.Decode(t.Context(), []byte("rule/acme-month"), wire.Frame(nil, 7, body)); err != nil || !cmp.Equal(got, r) {
		t.Errorf("registry back: %+v, %v", got, err)
	}
}

// A flaky registry answers err, or has the one schema under every id.
type flaky struct{ err error }

func (f *flaky) Register(context.Context, string, string) (uint32, error) { return 7, f.err }

func (f *flaky) Schema(context.Context, uint32) (string, []string, error) {
	return schemas.RulesV1, []string{rulesv1.Subject}, f.err
}

// TestRoundTrip guarantees that whatever valid record is written is the record
// that is read, with absent arrays empty.
func TestRoundTrip(t *testing.T) {
	t.Parallel()

	d := newDecoder()
	names := slices.Sorted(maps.Keys(schemastest.Rules()))
	written := 0
	rapid.Check(t, func(t *rapid.T) {
		want := schemastest.Rules()[rapid.SampledFrom(names).Draw(t, "sample")]
		shake(t, &want)
		body, err := rulesv1.AppendRecord(nil, &want)
		if err != nil {
			if !errors.Is(err, wire.ErrPoison) {
				t.Fatal(err)
			}
			return
		}
		written++
		got, err := d.Decode(context.Background(), []byte(rulesv1.Key(want.Kind, want.ID)), wire.Frame(nil, 1, body))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("read differently (-want +got):\n%s", diff)
		}
	})
	if written < 30 {
		t.Errorf("%d records were valid: the generator no longer reaches the codec", written)
	}
}

// shake changes some fields of r within their types.
func shake(t *rapid.T, r *rulesv1.Record) {
	text := rapid.StringN(0, 40, 80)
	number := rapid.Int64Range(0, exact)
	r.Version, r.Revision = number.Draw(t, "version"), number.Draw(t, "revision")
	r.ChangedBy = text.Draw(t, "changed_by")
	if r.Tenant != nil {
		r.Tenant.Name = text.Draw(t, "name")
		r.Tenant.PreviousPeriods = r.Tenant.PreviousPeriods[:rapid.IntRange(0, 2).Draw(t, "periods")]
	}
	if r.APIKey != nil {
		r.APIKey.User = text.Draw(t, "user")
		r.APIKey.Digest = rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "digest")
	}
	if r.Endpoint != nil {
		r.Endpoint.Cost = number.Draw(t, "cost")
		r.Endpoint.RefundOn = rapid.SliceOfN(rapid.StringN(1, 8, 16), 0, 3).Draw(t, "refund_on")
	}
	if r.Rule != nil {
		u := r.Rule
		u.Name, u.Condition = text.Draw(t, "name"), text.Draw(t, "condition")
		u.Enabled, u.Soft = rapid.Bool().Draw(t, "enabled"), rapid.Bool().Draw(t, "soft")
		u.Priority = rapid.Int32Range(-1_000_000, 1_000_000).Draw(t, "priority")
		u.Mode = rapid.SampledFrom([]rulesv1.Mode{rulesv1.ModeEnforce, rulesv1.ModeShadow}).Draw(t, "mode")
		u.Cost = rapid.Ptr(number, true).Draw(t, "cost")
		u.ValidFrom = rapid.Ptr(number, true).Draw(t, "valid_from")
		u.ThresholdsLeft = rapid.SliceOfN(number, 0, 3).Draw(t, "thresholds_left")
		if u.Match != nil {
			u.Match.User = text.Draw(t, "user")
		}
	}
}
