package grpcapi

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"unicode/utf8"

	"penstock.dev/proto/ratelimitv3"
	"penstock.dev/services/gateway/ask"
	"penstock.dev/services/internal/rule"
)

// maxEntries bounds the entries of a descriptor: all dimensions and as many
// labels as a question may have.
const maxEntries = 8 + ask.MaxLabels

// dimensions are the keys of entries that are not labels, and the fields of a
// question that they name.
var dimensions = map[string]string{
	"tenant": "tenant", "application": "application", "user": "user", "api_key": "api_key", "service": "service",
	"method": "method", ":method": "method", "path": "path", ":path": "path",
	"client_ip": "client_ip", "remote_address": "client_ip",
}

// A reading is what became of a descriptor. What a configuration can do wrong
// is a fault of the call. What a client can do wrong only refuses its own
// request: Envoy lets pass what it gets an error about.
type reading struct {
	ask.Question
	refused ask.Faults
}

// read reads the descriptors of a call. The error is ask.Faults.
func read(in *ratelimitv3.RateLimitRequest) ([]reading, error) {
	var list ask.Faults
	domain, descriptors := in.GetDomain(), in.GetDescriptors()
	switch {
	case domain == "":
		list.Add("domain", "is required: the id of the service")
	case len(domain) > ask.MaxValue || !utf8.ValidString(domain):
		list.Add("domain", fmt.Sprintf("is not 1 to %d bytes of UTF-8", ask.MaxValue))
	}
	switch {
	case len(descriptors) == 0:
		list.Add("descriptors", ask.NoQuestions())
	case len(descriptors) > ask.MaxQuestions:
		list.Add("descriptors", ask.TooManyQuestions())
		descriptors = nil
	}
	read := make([]reading, len(descriptors))
	for i, d := range descriptors {
		r := &read[i]
		r.Service = domain
		field := "descriptors[" + strconv.Itoa(i) + "]"
		if d.GetIsNegativeHits() {
			list.Add(field+".is_negative_hits", "is not served: units are given back by the receipt of their decision ("+Decision+")")
		}
		if n := in.GetHitsAddend(); n > 0 {
			r.Cost = new(int64(n))
		}
		if h := d.GetHitsAddend(); h != nil {
			r.Cost = ask.Units("hits_addend", int64(min(h.GetValue(), uint64(rule.Unlimited)+1)), 0, &r.refused)
		}
		r.entries(field, d.GetEntries(), &list)
	}
	return read, list.Err()
}

// entries reads the entries of a descriptor.
func (r *reading) entries(field string, entries []*ratelimitv3.RateLimitDescriptor_Entry, list *ask.Faults) {
	if len(entries) > maxEntries {
		list.Add(field+".entries", fmt.Sprintf("has more than %d items", maxEntries))
		return
	}
	var given [8]string
	seen := given[:0]
	var labels map[string]string
	for _, e := range entries {
		key, value := e.GetKey(), e.GetValue()
		if name, ok := dimensions[key]; ok {
			for _, other := range seen {
				if other == name {
					list.Add(field+".entries", "names "+name+" twice")
				}
			}
			seen = append(seen, name)
			r.dimension(name, value)
			continue
		}
		if wrong := ask.LabelName(key); wrong != "" || !utf8.ValidString(key) {
			list.Add(field+".entries", fmt.Sprintf("has a key that is not 1 to %d bytes of UTF-8", ask.MaxLabelKey))
			continue
		}
		if labels == nil {
			labels = make(map[string]string, len(entries))
		}
		labels[free(labels, key)] = fitting(value)
	}
	if len(labels) > ask.MaxLabels {
		list.Add(field+".entries", fmt.Sprintf("has more than %d labels", ask.MaxLabels))
		return
	}
	r.SetLabels(labels, &r.refused)
}

// free is the name of a label for a key: that of a key that comes again has the
// number of its turn behind it.
func free(labels map[string]string, key string) string {
	name := key
	for n := 2; ; n++ {
		if _, taken := labels[name]; !taken {
			return name
		}
		name = key + "." + strconv.Itoa(n)
	}
}

// dimension takes in an entry that is one.
func (r *reading) dimension(name, value string) {
	switch name {
	case "tenant":
		r.Tenant = fitting(value)
	case "application":
		r.Application = fitting(value)
	case "user":
		r.User = fitting(value)
	case "api_key":
		r.Secret = fitting(value)
	case "service":
		r.Service = fitting(value)
	case "client_ip":
		r.Address = ask.Address(value, &r.refused)
	case "method":
		r.Method = ask.Method(ask.Text(name, value, ask.MaxMethod, &r.refused), &r.refused)
	case "path":
		r.Path = ask.Path(ask.Text(name, value, ask.MaxPath, &r.refused), &r.refused)
	}
}

// fitting is a value as it may be counted under: one that is too long or no
// UTF-8 stands under its digest, so that what differs stays apart.
func fitting(value string) string {
	if len(value) <= ask.MaxValue && utf8.ValidString(value) {
		return value
	}
	digest := sha256.Sum256([]byte(value))
	return "sha256:" + hex.EncodeToString(digest[:])
}
