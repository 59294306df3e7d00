package httpapi

// A Problem is one line of the table of problems.
type Problem struct {
	Err    error
	Status int
	Code   string
	Title  string
}

// Problems returns the table.
func Problems() []Problem {
	var out []Problem
	for _, p := range problems {
		out = append(out, Problem{p.err, p.status, p.code, p.title})
	}
	return out
}
