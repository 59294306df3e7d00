package httpapi

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"net/http"

	"penstock.dev/services/billing/account"
)

type walletPage struct {
	Items []walletDocument `json:"items"`
}

type walletDocument struct {
	Meter    string          `json:"meter"`
	Granted  int64           `json:"granted"`
	Consumed int64           `json:"consumed"`
	Returned int64           `json:"returned"`
	Balance  int64           `json:"balance"`
	TopUps   []topUpDocument `json:"topups"`
	Entries  []entryDocument `json:"entries"`
}

type topUpDocument struct {
	ID        string `json:"id"`
	Units     int64  `json:"units"`
	Spent     int64  `json:"spent"`
	Expired   int64  `json:"expired"`
	Left      int64  `json:"left"`
	Priority  int    `json:"priority"`
	GrantedAt string `json:"granted_at"`
	ExpiresAt string `json:"expires_at,omitempty"`
	Reason    string `json:"reason"`
}

type entryDocument struct {
	At       string            `json:"at"`
	Kind     account.EntryKind `json:"kind"`
	Units    int64             `json:"units"`
	Ref      string            `json:"ref"`
	Service  string            `json:"service,omitempty"`
	Endpoint string            `json:"endpoint,omitempty"`
	Reason   string            `json:"reason,omitempty"`
	Flagged  string            `json:"flagged,omitempty"`
}

func decodeWallet(_ context.Context, r *http.Request) (any, error) { return formOf(r, asJSON) }

func (h *handler) wallet(ctx context.Context, _ any) (any, error) {
	all, err := h.cfg.Reader.Wallets(ctx, grantOf(ctx).Tenant, h.cfg.Now())
	if err != nil {
		return nil, err
	}
	page := walletPage{Items: []walletDocument{}}
	for _, w := range all {
		d := walletDocument{
			Meter: w.Meter, Granted: w.Granted, Consumed: w.Consumed, Returned: w.Returned, Balance: w.Balance(),
			TopUps: []topUpDocument{}, Entries: []entryDocument{},
		}
		for _, g := range w.Grants {
			d.TopUps = append(d.TopUps, topUpDocument{
				ID: g.ID, Units: g.Units, Spent: g.Spent, Expired: g.Expired, Left: g.Left(), Priority: g.Priority,
				GrantedAt: instant(g.GrantedAt), ExpiresAt: instant(g.ExpiresAt), Reason: g.Reason,
			})
		}
		for _, e := range w.Entries {
			d.Entries = append(d.Entries, entryDocument{
				At: instant(e.At), Kind: e.Kind, Units: e.Units, Ref: e.Ref, Service: e.Service, Endpoint: e.Endpoint, Reason: e.Reason, Flagged: e.Flagged,
			})
		}
		page.Items = append(page.Items, d)
	}
	return answer{document: page}, nil
}

// encode writes an answer in the form that it was made for.
func encode(_ context.Context, w http.ResponseWriter, response any) error {
	a := response.(answer) // every endpoint makes one
	w.Header().Add("Vary", "Accept, Authorization")
	if a.rows == nil {
		w.Header().Set("Content-Type", string(asJSON))
		return json.NewEncoder(w).Encode(a.document)
	}
	w.Header().Set("Content-Type", string(asCSV)+"; charset=utf-8; header=present")
	w.Header().Set("Content-Disposition", `attachment; filename="`+a.name+`.csv"`)
	table := csv.NewWriter(w)
	table.UseCRLF = true
	return table.WriteAll(a.rows)
}
