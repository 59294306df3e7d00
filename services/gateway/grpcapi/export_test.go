package grpcapi

import (
	"context"
	"net"
	"slices"

	"pgregory.net/rapid"

	"penstock.dev/proto/ratelimitv3"
	"penstock.dev/services/gateway/grpcapi/h2"
	"penstock.dev/services/internal/spoiltest"
)

// Listen serves a face on ln until ctx ends. Memory that package h2's engine gives
// back is overwritten: who looks at it all the same is found.
func Listen(ctx context.Context, cfg Config, face *Face, ln net.Listener) error {
	if cfg.Engine == GRPCGo {
		return serve(ctx, cfg, face, ln)
	}
	e, err := newFast(cfg, face)
	if err != nil {
		return err
	}
	e.askings = spoiling{e.askings}
	return e.serve(ctx, ln)
}

type spoiling struct{ memory }

// Put is memory's.
func (s spoiling) Put(v any) {
	spoiltest.Spoil(v)
	s.memory.Put(v)
}

// Codes are the reasons that have a status of their own.
func Codes() map[string]Code { return statuses }

// What a RateLimitRequest is read as, off its message; and texts as JSON.
var (
	LimitCallOf = limitCallOf
	AppendJSON  = appendJSON
)

// ParseLimitCall reads a message in memory where garbage is left of another.
func ParseLimitCall(message []byte) (limitCall, error) {
	var c limitCall
	_ = c.parse([]byte("\n\x01d\x12\x08\n\x06\n\x01k\x12\x01v"))
	spoiltest.Spoil(&c)
	err := c.parse(message)
	return c, err
}

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

// Together returns what answers messages that one read brought to ShouldRateLimit,
// from what they say to what is written, and returns how many bytes that is.
func (f *Face) Together(ctx context.Context, messages [][]byte) func() (written int) {
	e := fast{face: f, ending: ctx}
	calls := make([]h2.Call, len(messages))
	var a asking
	return func() (written int) {
		a.reset()
		for i := range calls {
			c := &calls[i]
			c.Method, c.Request, c.Response = ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName, messages[i], c.Response[:0]
			e.read(&a, c)
		}
		e.ask(&a)
		for i := range calls {
			written += len(calls[i].Response)
		}
		return written
	}
}
