package portal

import (
	"penstock.dev/services/billing/account"
)

type walletPage struct {
	Counted string
	Wallets []walletHistory
	Missing *missing
}

type walletHistory struct {
	walletView
	Stats   []stat
	Grants  []grantRow
	Entries []entryRow
	Most    string // how many movements are shown when there are more; empty: all
	IsCut   bool
}

type grantRow struct {
	ID, Reason, At, Units, Spent, Left, Ends, Expired string
}

type entryRow struct {
	ISO, At, Kind, Tone, Ref, Reason, Units, After, Flagged string
}

func (v *visit) wallet() error {
	wallets, missing := partOf(v, "wallet", func() ([]account.Wallet, error) {
		return v.Reader.Wallets(v.r.Context(), v.grant.Tenant, v.now.UTC())
	})
	body := walletPage{Counted: v.counted(), Missing: missing}
	for _, w := range wallets {
		body.Wallets = append(body.Wallets, v.walletHistory(w))
	}
	return v.show("wallet", v.lang.word("wallet"), "wallet", false, body)
}

func (v *visit) walletHistory(w account.Wallet) walletHistory {
	l := v.lang
	out := walletHistory{walletView: v.walletView(w), IsCut: w.Balance() <= 0}
	out.Stats = []stat{
		{Name: l.word("wallet.balance"), Value: l.num(w.Balance()), Note: out.Of},
		{Name: l.word("wallet.granted"), Value: l.num(w.Granted), Note: w.Meter},
		{Name: l.word("wallet.consumed"), Value: l.num(w.Consumed), Note: w.Meter},
		{Name: l.word("wallet.back"), Value: l.num(w.Returned), Note: w.Meter},
	}
	for _, g := range w.Grants {
		row := grantRow{
			ID: g.ID, Reason: g.Reason, At: l.instant(g.GrantedAt.In(v.who.Zone), v.now),
			Units: l.num(g.Units), Spent: l.num(g.Spent), Left: l.num(g.Left()), Ends: l.word("grant.never"),
		}
		if !g.ExpiresAt.IsZero() {
			row.Ends = l.instant(g.ExpiresAt.In(v.who.Zone), v.now)
		}
		if g.Expired > 0 {
			row.Expired = l.word("grant.expired", l.num(g.Expired))
		}
		out.Grants = append(out.Grants, row)
	}
	balance := w.Balance()
	for _, e := range w.Entries {
		at := e.At.In(v.who.Zone)
		row := entryRow{
			ISO: at.Format("2006-01-02T15:04:05Z07:00"), At: l.moment(at, v.now), Kind: l.word("entry." + string(e.Kind)),
			Ref: e.Ref, Reason: e.Reason, Units: l.num(e.Units), After: l.num(balance),
		}
		if e.Units > 0 {
			row.Units = "+" + row.Units
		}
		if e.Endpoint != "" {
			row.Ref = e.Endpoint
		}
		if e.Flagged != "" {
			row.Flagged = l.word("entry.flagged")
		}
		if balance <= 0 {
			row.Tone = "is-cut"
		}
		balance -= e.Units
		out.Entries = append(out.Entries, row)
	}
	if len(w.Entries) >= account.MaxEntries {
		out.Most = l.word("entries.most", l.num(int64(len(w.Entries))))
	}
	return out
}
