package ask

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"penstock.dev/services/gateway/canon"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/rule"
)

// Bounds of a question, in bytes unless they say otherwise.
const (
	MaxValue    = 256  // of a dimension, the request id, the API key and a label's value
	MaxMethod   = 32   // of a method
	MaxPath     = 8192 // of a path, as it was sent
	MaxLabels   = 64   // labels
	MaxLabelKey = 128  // of a label's name
	MaxLabelSum = 8192 // of all labels as compact JSON, as the event of the decision has them
	MaxRefundID = 128  // of the id of a refund

	MaxQuestions = 100 // questions of a batch
)

// A Question is what was asked.
type Question struct {
	decide.Query
	Secret string // of the API key; empty: none was given
	Told   string // the labels as the event has them: JSON; empty: none

	digest [sha256.Size]byte // of the secret
}

// identify looks up the API key of a question that has one, and fills in what
// it stands for. The error is Faults.
func (q *Question) identify(rules Catalogue) (known bool, err error) {
	q.digest = sha256.Sum256([]byte(q.Secret))
	key, ok := rules.Key(q.digest)
	if !ok {
		return false, nil
	}
	return true, q.resolve(&key)
}

// resolve fills in what an API key stands for. The error is Faults.
func (q *Question) resolve(key *decide.Key) error {
	var list Faults
	for _, d := range []struct {
		name  string
		said  *string
		keyed string
	}{{"tenant", &q.Tenant, key.Tenant}, {"application", &q.Application, key.Application}, {"user", &q.User, key.User}} {
		switch {
		case *d.said == "":
			*d.said = d.keyed
		case d.keyed != "" && *d.said != d.keyed:
			list.Add(d.name, "is not the one of the api_key")
		}
	}
	if len(list) > 0 {
		return list
	}
	q.APIKey = key.ID
	return nil
}

// Text is a text of at most so many bytes, else a fault and nothing.
func Text(field, v string, most int, list *Faults) string {
	if len(v) > most {
		list.Add(field, fmt.Sprintf("is longer than %d bytes", most))
		return ""
	}
	return v
}

// Address reads the address of a client.
func Address(text string, list *Faults) netip.Addr {
	if text == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		list.Add("client_ip", "is no IP address")
	}
	return canon.Group(a)
}

// tokenBytes are what a method may consist of (RFC 9110).
const tokenBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~"

// Method reads a method.
func Method(text string, list *Faults) string {
	for i := 0; i < len(text); i++ {
		if strings.IndexByte(tokenBytes, text[i]) < 0 {
			list.Add("method", "is no HTTP method")
			return ""
		}
	}
	return canon.Method(text)
}

// Path reads a path as the gate reads that of a request. A query may be behind
// it, as in a request's target, and does not count.
func Path(text string, list *Faults) string {
	if text == "" {
		return ""
	}
	text, _, _ = strings.Cut(text, "?")
	p, err := canon.ParsePath(text)
	if err != nil {
		list.Add("path", "is an "+err.Error())
	}
	return p.Match
}

// Units is a number of units, else a fault and nil.
func Units(field string, n, least int64, list *Faults) *int64 {
	if n < least || n > rule.Unlimited {
		list.Add(field, OutOfBounds(least))
		return nil
	}
	return &n
}

// OutOfBounds says what is wrong with a number of units.
func OutOfBounds(least int64) string {
	return fmt.Sprintf("is not within %d and %d", least, rule.Unlimited)
}

// LabelName says what is wrong with the name of a label: nothing, if it is "".
func LabelName(name string) string {
	if name == "" || len(name) > MaxLabelKey {
		return fmt.Sprintf("has a name that is not 1 to %d bytes long", MaxLabelKey)
	}
	return ""
}

// TooManyLabels says that there are more than MaxLabels.
func TooManyLabels() string { return fmt.Sprintf("has more than %d members", MaxLabels) }

// TellLabels takes labels into a question, and their JSON as its event has them.
func (q *Question) TellLabels(labels map[string]string, text string, list *Faults) {
	q.Labels = labels
	if len(text) > MaxLabelSum {
		list.Add("labels", fmt.Sprintf("is longer than %d bytes as compact JSON", MaxLabelSum))
	}
	q.Told = text
}

// SetLabels checks labels and takes them into a question, in the order of their
// names.
func (q *Question) SetLabels(labels map[string]string, list *Faults) {
	if len(labels) == 0 {
		return
	}
	if len(labels) > MaxLabels {
		list.Add("labels", TooManyLabels())
		return
	}
	names := make([]string, 0, len(labels))
	for name := range labels {
		names = append(names, name)
	}
	slices.Sort(names)
	b := make([]byte, 0, 256)
	for _, name := range names {
		field := "labels." + name
		if wrong := LabelName(name); wrong != "" {
			list.Add("labels", wrong)
			field = "labels"
		}
		Text(field, labels[name], MaxValue, list)
		b = append(AppendString(append(b, ','), name), ':')
		b = AppendString(b, labels[name])
	}
	b[0] = '{'
	q.TellLabels(labels, string(append(b, '}')), list)
}

// AppendString appends a JSON string. Ids and words need no escapes; whatever
// else comes gets them.
func AppendString(dst []byte, s string) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < ' ':
			dst = append(dst, '\\', 'u', '0', '0', digits[r>>4], digits[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}

// NoQuestions and TooManyQuestions say what is wrong with the size of a batch.
func NoQuestions() string { return fmt.Sprintf("has no items, want 1 to %d", MaxQuestions) }

// TooManyQuestions is the opposite of NoQuestions.
func TooManyQuestions() string { return fmt.Sprintf("has more than %d items", MaxQuestions) }
