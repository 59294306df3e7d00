package httpapi

import "penstock.dev/services/gateway/ask"

// Codes are the codes of all problems.
func Codes() (codes []string) {
	for _, p := range append(ask.Problems(), problems...) {
		codes = append(codes, p.Code)
	}
	return codes
}
