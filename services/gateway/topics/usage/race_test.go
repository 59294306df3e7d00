//go:build race

package usage_test

// tolerated is how many allocations an event may cost a test: under the race
// detector pools forget on purpose.
const tolerated = 10
