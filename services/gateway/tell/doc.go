// Package tell is how a decision is told outside its own data: the headers that
// carry its limits, and the words for a refusal. Every face that answers a
// request, or has another proxy answer it, says the same.
package tell
