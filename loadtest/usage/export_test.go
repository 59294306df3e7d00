package usage

// For tests.
var Event = event
