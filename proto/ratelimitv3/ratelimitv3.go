// Package ratelimitv3 is the part of Envoy's rate limit API that the gateway
// speaks, envoy.service.ratelimit.v3, under Envoy's names and on its wire.
//
// A program cannot link it together with github.com/envoyproxy/go-control-plane,
// which registers the same names (docs/adr/0068).
package ratelimitv3

//go:generate go run ../internal/gen envoy/service/ratelimit/v3/rls.proto envoy/extensions/common/ratelimit/v3/ratelimit.proto envoy/config/core/v3/base.proto envoy/type/v3/ratelimit_unit.proto
