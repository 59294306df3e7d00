package postgres

// The statements of usage and explain.
const (
	CountPage        = countPage
	CountTenant      = countTenant
	SelectKey        = selectKey
	SelectNear       = selectNear
	SelectCandidates = selectCandidates
)
