// Package archtest holds the house rules that neither the compiler nor the
// linter can: who may import whom, what is linked into a binary, the form of
// decisions, of service READMEs and of metric names. It has tests only.
//
// Each rule says why, and names something that it must refuse, so that a rule
// which has stopped working fails too. The tests ask go list and read files
// that the test cache cannot see: run them with -count=1, as make arch does.
package archtest
