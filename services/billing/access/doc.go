// Package access says who may look at a tenant's numbers.
//
// A portal token is a JWT signed with Ed25519. Everything about its form is
// fixed here and nothing of it is taken from the token: a token that names
// another algorithm is refused before its signature is looked at
// (docs/adr/0065). Keys are known by an id; the first one signs, all of them
// verify, so that a key is changed by putting a new one in front.
//
// A token is good while its row is: issuing writes one, revoking marks it. A
// one-time code stands for a token on its way into a browser, so that no token
// is ever part of a URL.
package access
