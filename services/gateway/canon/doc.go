// Package canon gives a request one spelling: of its path, its method, its
// host, the names of its headers and the address it came from. Rules are
// matched against that spelling and the upstream is sent that spelling, so the
// two cannot disagree about what was asked (docs/adr/0033).
//
// It is pure, and the faces of the gate share it.
package canon
