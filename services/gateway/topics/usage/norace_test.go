//go:build !race

package usage_test

// tolerated is how many allocations an event may cost a test.
const tolerated = 0
