package server

// Seams for tests of the downloads, which must not depend on a network.
var (
	Fetch = fetch
	Lock  = lock
)
