package bench

import (
	"context"
	"encoding/csv"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"penstock.dev/deploy/local/server"
	limits "penstock.dev/loadtest/naive"
	"penstock.dev/loadtest/stats"
)

// startRaw makes a contender of redis-benchmark, which comes with Redis.
func (b *bench) startRaw(ctx context.Context, _ server.Run) error {
	sha, err := b.store.ScriptLoad(ctx, limits.Script).Result()
	if err != nil {
		return err
	}
	for name, pipeline := range map[string]int{raw: 1, pipelined: 16} {
		b.contenders[name] = &contender{run: func(ctx context.Context, t turn, o Options) (Sample, error) {
			return b.redisBenchmark(ctx, sha, pipeline, t, o)
		}}
	}
	return nil
}

// redisBenchmark runs as many calls as fit about the time, and no warming up.
func (b *bench) redisBenchmark(ctx context.Context, sha string, pipeline int, t turn, o Options) (s Sample, err error) {
	host, port, err := net.SplitHostPort(b.redis.Addr)
	if err != nil {
		return s, err
	}
	l := limits.LimitOf(t.Service)
	calls := int(o.For.Seconds() * 30_000 / float64(t.Rules) * float64(1+pipeline/8))
	args := []string{
		"-h", host, "-p", port, "-c", "64", "-n", strconv.Itoa(calls), "-P", strconv.Itoa(pipeline), "-r", strconv.Itoa(t.Keys), "--csv", "--precision", "3",
		"EVALSHA", sha, strconv.Itoa(t.Rules),
	}
	for k := range t.Rules {
		args = append(args, fmt.Sprintf("raw%d-%d:__rand_int__", t.number, k))
	}
	args = append(args, strconv.FormatInt(time.Now().UnixMicro(), 10), strconv.FormatInt(l.Price(), 10), strconv.FormatInt(l.Burst, 10))
	before := cpuOf(b.redis.PID())
	out, err := exec.CommandContext(ctx, "redis-benchmark", args...).Output()
	if err != nil {
		return s, fmt.Errorf("redis-benchmark: %w: %s", err, out)
	}
	s.Redis = micros(cpuOf(b.redis.PID())-before) / float64(calls)
	rows, err := csv.NewReader(strings.NewReader(string(out))).ReadAll()
	if err != nil || len(rows) != 2 || len(rows[1]) != 8 { // test, rps, ms: mean, min, p50, p95, p99, max
		return s, fmt.Errorf("redis-benchmark: %w: %s", err, out)
	}
	for i, to := range map[int]*stats.Millis{4: &s.P50, 6: &s.P99, 7: &s.Max} {
		ms, err := strconv.ParseFloat(rows[1][i], 64)
		if err != nil {
			return s, err
		}
		*to = stats.Millis(ms * float64(time.Millisecond))
	}
	s.PerSecond, err = strconv.ParseFloat(rows[1][1], 64)
	return s, err
}
