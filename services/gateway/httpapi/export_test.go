package httpapi

// Codes are the codes of all problems.
func Codes() []string {
	codes := []string{internalProblem.code}
	for _, p := range problems {
		codes = append(codes, p.code)
	}
	return codes
}
