package ledger

import "penstock.dev/services/internal/limit"

// Settle spreads what was consumed over open top-ups.
func Settle(w Wallet, open []TopUp, now limit.Totals) (Wallet, []TopUp) { return w.settle(open, now) }
