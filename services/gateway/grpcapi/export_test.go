package grpcapi

import (
	"context"
	"net"
	"slices"

	"pgregory.net/rapid"

	"penstock.dev/proto/ratelimitv3"
)

// Listen serves a face on ln until ctx ends.
func Listen(ctx context.Context, cfg Config, face *Face, ln net.Listener) error {
	return serve(ctx, cfg, face, ln)
}

// Codes are the reasons that have a status of their own.
func Codes() map[string]Code { return statuses }

// What a RateLimitRequest is read as, off the wire and off its message.
var (
	ParseLimitCall = parseLimitCall
	LimitCallOf    = limitCallOf
)

// SameLimitCall reports whether two calls ask the same.
func SameLimitCall(a, b limitCall) bool {
	return a.domain == b.domain && a.hits == b.hits && slices.EqualFunc(a.descriptors, b.descriptors, func(x, y descriptor) bool {
		return slices.Equal(x.entries, y.entries) && x.hits == y.hits && x.counted == y.counted && x.negative == y.negative
	})
}

// DrawLimited is an answer as a message and on the wire.
func DrawLimited(t *rapid.T) (*ratelimitv3.RateLimitResponse, []byte) {
	text, number := rapid.StringN(0, 300, 300), rapid.Uint32()
	l := limited{over: rapid.Bool().Draw(t, "over"), body: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "body")}
	for range rapid.IntRange(0, 4).Draw(t, "statuses") {
		l.statuses = append(l.statuses, limitStatus{
			over: rapid.Bool().Draw(t, "over"), limited: rapid.Bool().Draw(t, "limited"), rule: text.Draw(t, "rule"), limit: number.Draw(t, "limit"),
			remaining: number.Draw(t, "remaining"), unit: ratelimitv3.RateLimitResponse_RateLimit_Unit(rapid.IntRange(0, 7).Draw(t, "unit")),
			multiplier: number.Draw(t, "multiplier"), resets: rapid.Bool().Draw(t, "resets"), reset: rapid.Int64().Draw(t, "reset"),
		})
	}
	for range rapid.IntRange(0, 8).Draw(t, "headers") {
		l.headers = append(l.headers, header{text.Draw(t, "name"), text.Draw(t, "value")})
	}
	return l.message(), l.append([]byte("before"))[len("before"):]
}
