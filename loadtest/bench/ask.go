package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"penstock.dev/loadtest/wire"
	"penstock.dev/proto/ratelimitv3"
)

// tenants is how many the subjects belong to.
const tenants = 20

const method = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

func tenant(i int) string { return fmt.Sprintf("bench-%02d", i%tenants) }

// A turn is one contender's run of a scenario. Its subjects are its own, so
// that every counter begins with it.
type turn struct {
	Scenario
	number int
}

// user is one of the turn's subjects. The other dimensions are as many, and
// told apart in the same way.
func (t turn) user(i int) string        { return fmt.Sprintf("u%d-%05d", t.number, i) }
func (t turn) application(i int) string { return fmt.Sprintf("a%d-%05d", t.number, (3*i+7)%t.Keys) }
func (t turn) address(i int) string {
	return fmt.Sprintf("2001:db8:%x:%x::1", t.number, (7*i+21)%t.Keys)
}

// question is a decision request about subject i.
func (t turn) question(i int) map[string]any {
	q := map[string]any{"tenant": tenant(i), "user": t.user(i), "service": t.Service}
	if t.Rules > 1 {
		q["application"], q["client_ip"] = t.application(i), t.address(i)
	}
	return q
}

// limited is the message of our rate limit service: one descriptor, to which
// all rules apply, all or none.
func (t turn) limited(i int) ([]byte, error) {
	service := t.Service
	if t.Frozen {
		service = frozenServices[i%len(frozenServices)]
	}
	entries := []string{"tenant", tenant(i), "user", t.user(i)}
	if t.Rules > 1 {
		entries = append(entries, "application", t.application(i), "remote_address", t.address(i))
	}
	return message(service, entries)
}

// limitedEach is the message of others': a descriptor for each rule.
func (t turn) limitedEach(i int) ([]byte, error) {
	descriptors := make([][]string, t.Rules)
	for k := range descriptors {
		descriptors[k] = []string{fmt.Sprintf("k%d", k), t.value(k, i)}
	}
	return message(t.Service, descriptors...)
}

// value is that of rule k for subject i.
func (t turn) value(k, i int) string {
	stride := [...]int{1, 3, 7, 9, 11, 13}[k] // none has a factor of Keys: as many values of each
	return fmt.Sprintf("v%d-%05d", t.number, (stride*i+7*k)%t.Keys)
}

func message(domain string, descriptors ...[]string) ([]byte, error) {
	in := &ratelimitv3.RateLimitRequest{Domain: domain}
	for _, entries := range descriptors {
		d := &ratelimitv3.RateLimitDescriptor{}
		for k := 0; k < len(entries); k += 2 {
			d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: entries[k], Value: entries[k+1]})
		}
		in.Descriptors = append(in.Descriptors, d)
	}
	return proto.Marshal(in)
}

// envoyJSON is the body of a POST to /json of envoyproxy/ratelimit.
func (t turn) envoyJSON(i int) ([]byte, error) {
	return json.Marshal(map[string]any{"domain": t.Service, "descriptors": []any{
		map[string]any{"entries": []any{map[string]string{"key": "k0", "value": t.value(0, i)}}},
	}})
}

// judgeRateLimit says what a RateLimitResponse of so many statuses is. One of
// which a limit is missing was not decided by the rules.
func judgeRateLimit(statuses int) func(i, status int, body []byte) wire.Answer {
	return func(_, status int, body []byte) wire.Answer {
		answer, limits, err := readRateLimit(body)
		switch {
		case err != nil || status != 0:
			return wire.Wrong
		case limits == statuses:
			return answer
		case degraded(body):
			return wire.Degraded
		default:
			return wire.Wrong
		}
	}
}

// degraded reports whether a RateLimitResponse of our gateway says that the
// counter store did not decide.
func degraded(body []byte) bool { return bytes.Contains(body, []byte("x-ratelimit-degraded")) }

// judgeFrozen says the same where the counter store hangs: request i is
// answered by its rule's mode, and says so, or as ever.
func judgeFrozen(i, status int, body []byte) wire.Answer {
	answer, limits, err := readRateLimit(body)
	alone := degraded(body)
	want := wire.Passed
	if alone && frozenServices[i%len(frozenServices)] == "bench-closed" {
		want = wire.Refused
	}
	if err != nil || status != 0 || alone == (limits == 1) || answer != want {
		return wire.Wrong
	}
	return answer
}

var errAnswer = errors.New("no rate limit response")

// readRateLimit reads a RateLimitResponse as far as it is judged: its code, and
// how many of its statuses have a limit.
func readRateLimit(body []byte) (answer wire.Answer, limits int, err error) {
	for len(body) > 0 {
		field, kind, n := protowire.ConsumeTag(body)
		if n < 0 {
			return wire.Wrong, 0, errAnswer
		}
		body = body[n:]
		if n = protowire.ConsumeFieldValue(field, kind, body); n < 0 {
			return wire.Wrong, 0, errAnswer
		}
		switch {
		case field == 1 && kind == protowire.VarintType:
			switch code, _ := protowire.ConsumeVarint(body); code {
			case uint64(ratelimitv3.RateLimitResponse_OK):
				answer = wire.Passed
			case uint64(ratelimitv3.RateLimitResponse_OVER_LIMIT):
				answer = wire.Refused
			}
		case field == 2 && kind == protowire.BytesType:
			if s, _ := protowire.ConsumeBytes(body); hasLimit(s) {
				limits++
			}
		}
		body = body[n:]
	}
	return answer, limits, nil
}

// hasLimit reports whether a DescriptorStatus has its current_limit.
func hasLimit(status []byte) bool {
	for len(status) > 0 {
		field, _, n := protowire.ConsumeField(status)
		if n < 0 {
			return false
		}
		if field == 2 {
			return true
		}
		status = status[n:]
	}
	return false
}

// judgeDecisions says what the answer to so many decision requests is. All pass
// or are refused alike.
func judgeDecisions(n int) func(i, status int, body []byte) wire.Answer {
	passed, refused := []byte(`"outcome":"ALLOW"`), []byte(`"outcome":"DENY"`)
	sound, alone := []byte(`"degraded":false,`), []byte(`"degraded":true,`)
	limits := []byte(`"limits":[{`)
	return func(_, status int, body []byte) wire.Answer {
		decided := bytes.Count(body, sound)
		switch {
		case status != 200 || decided+bytes.Count(body, alone) != n || bytes.Count(body, limits) != decided:
			return wire.Wrong
		case decided < n:
			return wire.Degraded
		case bytes.Count(body, passed) == n:
			return wire.Passed
		case bytes.Count(body, refused) == n:
			return wire.Refused
		default:
			return wire.Wrong
		}
	}
}

// judgeEnvoyJSON says what an answer of envoyproxy/ratelimit's /json is, whose
// writer puts spaces where it likes.
func judgeEnvoyJSON(_, status int, body []byte) wire.Answer {
	overall := func(code string) bool {
		return bytes.Contains(body, []byte(`"overallCode":"`+code+`"`)) || bytes.Contains(body, []byte(`"overallCode": "`+code+`"`))
	}
	switch {
	case !bytes.Contains(body, []byte("currentLimit")):
		return wire.Wrong
	case status == 200 && overall("OK"):
		return wire.Passed
	case status == 429 && overall("OVER_LIMIT"):
		return wire.Refused
	default:
		return wire.Wrong
	}
}

// post is a whole request of HTTP/1.1.
func post(host, path, token string, body []byte) []byte {
	return append([]byte("POST "+path+" HTTP/1.1\r\nHost: "+host+"\r\nAuthorization: Bearer "+token+
		"\r\nContent-Type: application/json\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"), body...)
}
