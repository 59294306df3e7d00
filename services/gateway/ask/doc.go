// Package ask is what trusted callers ask of the gateway, in whatever language:
// which questions and corrections may be put, within which bounds, who may put
// them, what is wrong with those that may not, and how each is answered and
// told of. A face adds how all that is spelled.
package ask
