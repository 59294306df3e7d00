package server

// A seam for tests of the downloads, which must not depend on a network.
var Fetch = fetch

// A seam for tests of archives that are damaged, or mean harm.
var UnpackArchive = unpackArchive

// A seam for what is made of Maven's output.
var MavenLines = mavenLines
