// Package httpapi is the gateway's own API on the data port: trusted callers
// ask for a decision with POST /v1/decisions, and act on the answer themselves.
//
// An answer is data: its status is always 200, whatever was decided. Only a
// question that cannot be read, or that nobody may ask, is an error. The
// OpenAPI document is served at /v1/openapi.json.
package httpapi
