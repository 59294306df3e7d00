package proof

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"penstock.dev/deploy/local/estate"
)

// A fakeBilling signs and checks tokens as billing does, but for its faults.
type fakeBilling struct {
	key                                            ed25519.PrivateKey
	revoked                                        map[string]bool
	believesParameters, believesTokens, tellsApart bool
	forgetsRevocation                              bool
}

func (f *fakeBilling) token(tenant string) string {
	encode := base64.RawURLEncoding.EncodeToString
	body := encode([]byte(`{"alg":"EdDSA"}`)) + "." + encode([]byte(`{"tenant":"`+tenant+`"}`))
	return body + "." + encode(ed25519.Sign(f.key, []byte(body)))
}

// tenant is whose token it is, "" when it is nobody's.
func (f *fakeBilling) tenant(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	payload, _ := base64.RawURLEncoding.DecodeString(parts[1])
	signature, _ := base64.RawURLEncoding.DecodeString(parts[2])
	if !f.believesTokens && !ed25519.Verify(f.key.Public().(ed25519.PublicKey), []byte(parts[0]+"."+parts[1]), signature) {
		return ""
	}
	var claims struct{ Tenant string }
	if json.Unmarshal(payload, &claims) != nil || f.revoked[claims.Tenant] && !f.forgetsRevocation {
		return ""
	}
	return claims.Tenant
}

func (f *fakeBilling) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodDelete {
		f.revoked["mallory"] = true
		w.WriteHeader(http.StatusNoContent)
		return
	}
	tenant := f.tenant(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	if tenant == "" {
		http.Error(w, "{}", http.StatusUnauthorized)
		return
	}
	if named := r.FormValue("tenant"); named != "" && f.believesParameters {
		tenant = named
	}
	switch id, one := strings.CutPrefix(r.URL.Path, "/v1/invoices/"); {
	case one && f.tellsApart && id == "victims-invoice":
		http.Error(w, "that is not yours", http.StatusForbidden)
	case one:
		http.Error(w, "{}", http.StatusNotFound)
	default:
		_, _ = io.WriteString(w, `{"of": "`+tenant+`"}`)
	}
}

// TestForgedPortalCanFail guarantees that the proof of the portal turns red when
// billing believes a parameter, a forged token or a revoked one, or tells a foreign
// invoice from a missing one.
func TestForgedPortalCanFail(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name    string
		billing fakeBilling
		held    bool
	}{
		{"what is promised", fakeBilling{}, true},
		{"a parameter is believed", fakeBilling{believesParameters: true}, false},
		{"a forged token is believed", fakeBilling{believesTokens: true}, false},
		{"a foreign invoice is not a missing one", fakeBilling{tellsApart: true}, false},
		{"a revoked token goes on", fakeBilling{forgetsRevocation: true}, false},
	}
	for _, tt := range tests {
		_, key, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		tt.billing.key, tt.billing.revoked = key, map[string]bool{}
		server := httptest.NewServer(&tt.billing)
		e := &estate.Estate{Env: map[string]string{"BILLING_URL": server.URL, "BILLING_TOKEN": "operator"}}
		tr := &trial{
			s: &stage{Estate: e, http: server.Client()}, mallory: "mallory", victim: "victim", secret: "topup-17", invoice: "victims-invoice",
			own: pass{Token: tt.billing.token("mallory"), JTI: "1"},
		}
		for _, step := range []func() error{
			func() error { return tr.parameters(t.Context()) }, func() error { return tr.foreign(t.Context()) },
			func() error { return tr.forge(t.Context()) }, func() error { return tr.revoke(t.Context()) },
		} {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
		if f := tr.judge(); f.Held != tt.held {
			t.Errorf("%s: held %v, want %v; %s; %s", tt.name, f.Held, tt.held, f.Expected, f.Measured)
		}
		server.Close()
	}
}

// TestInvoiceCanFail guarantees that the proof of the invoice turns red when it
// differs from the counter, in units or in money, and when events are missing.
func TestInvoiceCanFail(t *testing.T) {
	t.Parallel()

	const right = `{"id": "d-1", "state": "draft", "total": "10.75", "counted": [{"meter": "api-calls", "consumed": 125, "returned": 20, "net": 105, "lost": 0, "unattributed": 0}],
		"lines": [{"kind": "fee", "units": 1, "amount": "10.00"}, {"kind": "included", "meter": "api-calls", "units": 30, "amount": "0.00"},
		{"kind": "usage", "meter": "api-calls", "units": 75, "amount": "0.75"}]}`
	counter := estate.Limit{Consumed: 125, Refunded: 20}
	for change, held := range map[string]bool{
		"": true, `"consumed": 125|"consumed": 124`: false, `"returned": 20|"returned": 0`: false,
		`"units": 75|"units": 95`: false, `"10.75"|"10.95"`: false, `"lost": 0|"lost": 1`: false,
	} {
		text := right
		if from, to, ok := strings.Cut(change, "|"); ok {
			text = strings.Replace(right, from, to, 1)
		}
		var b bill
		if err := json.Unmarshal([]byte(text), &b); err != nil {
			t.Fatal(err)
		}
		if f := judgeBill(b, counter, "api-calls", 30); f.Held != held {
			t.Errorf("%q: held %v, want %v; %s; %s", change, f.Held, held, f.Expected, f.Measured)
		}
	}
}
