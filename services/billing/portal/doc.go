// Package portal is what a customer sees: how much was used and is left, why
// calls were cut, the wallet and the invoices, in English and Turkish.
//
// Pages are made on the server and work without script; nothing is built before
// the Go compiler runs (docs/adr/0066). A page shows what the books say and when
// they were counted, never a guess for what could not be read. The tenant is the
// verified token's and nothing in a request can change it.
package portal
