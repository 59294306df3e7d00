package topics

import (
	"fmt"

	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/wire"
	"penstock.dev/services/rule-admin/catalog"
	"penstock.dev/services/rule-admin/ledger"
)

// Entry returns the records of what was written in the ledger: the wallet with
// all that was ever granted to it, and the top-up. The error is
// catalog.ErrNoSchema while no id is known.
func (s *Schema) Entry(e *ledger.Entry, at catalog.Moment) ([]catalog.Record, error) {
	w, t := &e.Wallet, &e.TopUp
	wallet := rulesv1.Record{
		Kind: rulesv1.KindWallet, ID: w.Tenant + ":" + w.Meter,
		Wallet: &rulesv1.Wallet{Tenant: w.Tenant, Meter: w.Meter, GrantedTotal: w.Granted},
	}
	grant := rulesv1.Record{
		Kind: rulesv1.KindGrant, ID: t.ID,
		Grant: &rulesv1.Grant{
			Tenant: t.Tenant, Meter: t.Meter, Units: t.Units, Priority: t.Priority, GrantedAt: t.GrantedAt.UnixMicro(),
			ExpiresAt: micros(t.ExpiresAt), ExpiredUnits: t.ExpiredUnits, Reason: t.Reason,
		},
	}
	var out []catalog.Record
	for _, r := range []*rulesv1.Record{&wallet, &grant} {
		r.Version, r.Revision, r.ChangedAt, r.ChangedBy = at.Revision, at.Revision, at.Now.UnixMicro(), e.Caller.Actor
		r.Requires = []string{}
		record, err := s.framed(r)
		if err != nil {
			return nil, err
		}
		out = append(out, record)
	}
	return out, nil
}

// framed is a record as it goes into the outbox.
func (s *Schema) framed(r *rulesv1.Record) (catalog.Record, error) {
	id, ok := s.id()
	if !ok {
		return catalog.Record{}, fmt.Errorf("%w: schema registry %s has not answered yet, and no id was kept from before", catalog.ErrNoSchema, s.name)
	}
	body, err := rulesv1.AppendRecord(nil, r)
	if err != nil {
		return catalog.Record{}, fmt.Errorf("%s %s: %w", r.Kind, r.ID, err)
	}
	return catalog.Record{
		Topic: rulesv1.Topic, Key: rulesv1.Key(r.Kind, r.ID), Type: string(r.Kind) + ".changed",
		Payload: wire.Frame(make([]byte, 0, wire.HeaderSize+len(body)), id, body),
	}, nil
}
