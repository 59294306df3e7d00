package money

import (
	"math/big"
	"slices"
)

// largest is the indices of rs, the largest first, equal ones in their order.
func largest(rs []*big.Rat) []int {
	order := make([]int, len(rs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return rs[b].Cmp(rs[a]) })
	return order
}
