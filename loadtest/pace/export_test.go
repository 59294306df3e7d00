package pace

// RunBy is Run with another way to sleep.
var RunBy = run
