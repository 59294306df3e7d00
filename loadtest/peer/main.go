// Peer is what a gateway is measured beside (loadtest/bench): the naive design,
// which asks Redis once for each request, behind grpc-go and behind net/http; or,
// without -redis, a server of grpc-go that answers at once.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"

	"penstock.dev/loadtest/naive"
	"penstock.dev/proto/ratelimitv3"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("peer", flag.ContinueOnError)
	grpcAddr := flags.String("grpc", "", "host:port of envoy.service.ratelimit.v3")
	httpAddr := flags.String("http", "", "host:port of POST /v1/decisions; empty: none")
	store := flags.String("redis", "", "host:port of Redis; empty: every request passes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	p := &peer{}
	if *store != "" {
		p.redis = redis.NewClient(&redis.Options{Addr: *store})
		defer func() { _ = p.redis.Close() }()
		if err := gcra.Load(ctx, p.redis).Err(); err != nil {
			return err
		}
	}
	ended := make(chan error, 2)
	if *httpAddr != "" {
		ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", *httpAddr)
		if err != nil {
			return err
		}
		s := &http.Server{Handler: http.HandlerFunc(p.decide), ReadHeaderTimeout: time.Minute}
		defer func() { _ = s.Close() }()
		go func() { ended <- s.Serve(ln) }()
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", *grpcAddr)
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	defer s.Stop()
	ratelimitv3.RegisterRateLimitServiceServer(s, p)
	go func() { ended <- s.Serve(ln) }()
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return err
	}
}

var gcra = redis.NewScript(naive.Script)

// A peer answers. It is safe for concurrent use.
type peer struct {
	ratelimitv3.UnimplementedRateLimitServiceServer
	redis *redis.Client // nil: every request passes
}

// take charges a unit of every key or none, and returns what is left of the
// tightest, and whether it did.
func (p *peer) take(ctx context.Context, l naive.Limit, keys []string) (left int64, ok bool, err error) {
	if p.redis == nil {
		return l.Burst, true, nil
	}
	left, err = gcra.EvalSha(ctx, p.redis, keys, time.Now().UnixMicro(), l.Price(), l.Burst).Int64()
	return left, left >= 0, err
}

// ShouldRateLimit counts each descriptor, all or none.
func (p *peer) ShouldRateLimit(ctx context.Context, in *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	l := naive.LimitOf(in.GetDomain())
	keys := make([]string, len(in.GetDescriptors()))
	for i, d := range in.GetDescriptors() {
		keys[i] = in.GetDomain()
		for _, e := range d.GetEntries() {
			keys[i] += ":" + e.GetKey() + "=" + e.GetValue()
		}
	}
	left, ok, err := p.take(ctx, l, keys)
	if err != nil {
		return nil, err
	}
	code := ratelimitv3.RateLimitResponse_OK
	if !ok {
		code = ratelimitv3.RateLimitResponse_OVER_LIMIT
	}
	out := &ratelimitv3.RateLimitResponse{OverallCode: code, Statuses: make([]*ratelimitv3.RateLimitResponse_DescriptorStatus, len(keys))}
	for i := range out.Statuses {
		out.Statuses[i] = &ratelimitv3.RateLimitResponse_DescriptorStatus{
			Code: code, LimitRemaining: uint32(max(left, 0)),
			CurrentLimit: &ratelimitv3.RateLimitResponse_RateLimit{RequestsPerUnit: uint32(l.Units), Unit: ratelimitv3.RateLimitResponse_RateLimit_HOUR},
		}
	}
	return out, nil
}

// decide answers POST /v1/decisions in as few words as a caller can do with.
func (p *peer) decide(w http.ResponseWriter, r *http.Request) {
	var q struct{ Tenant, User, Service string }
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&q)
	if err == nil && (q.User == "" || q.Service == "") {
		err = errors.New("user and service are required")
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	l := naive.LimitOf(q.Service)
	left, ok, err := p.take(r.Context(), l, []string{q.Service + ":tenant=" + q.Tenant + ":user=" + q.User})
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	outcome := "ALLOW"
	if !ok {
		outcome = "DENY"
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(`{"outcome":"` + outcome + `","degraded":false,"limits":[{"limit":` + strconv.FormatInt(l.Units, 10) +
		`,"remaining":` + strconv.FormatInt(max(left, 0), 10) + "}]}\n"))
}
