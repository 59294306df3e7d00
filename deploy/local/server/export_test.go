package server

// A seam for tests of the downloads, which must not depend on a network.
var Fetch = fetch
