package grpcapi

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"unicode/utf8"

	"penstock.dev/services/gateway/ask"
	"penstock.dev/services/internal/rule"
)

// maxEntries bounds the entries of a descriptor: all dimensions and as many
// labels as a question may have.
const maxEntries = 8 + ask.MaxLabels

// dimensionOf is the field of a question that an entry's key names; empty: the
// entry is a label.
func dimensionOf(key string) string {
	switch key {
	case "tenant", "application", "user", "api_key", "service", "method", "path", "client_ip":
		return key
	case ":method", ":path":
		return key[1:]
	case "remote_address":
		return "client_ip"
	default:
		return ""
	}
}

// A reading is what became of a descriptor. What a configuration can do wrong
// is a fault of the call. What a client can do wrong only refuses its own
// request: Envoy lets pass what it gets an error about.
type reading struct {
	*ask.Question
	refused ask.Faults
}

// read reads the descriptors of a call, and appends the questions of those that
// can be asked. What is wrong with each of the others is in refused, which is nil
// where all can. The error is ask.Faults.
func read(in *limitCall, qs []ask.Question) (_ []ask.Question, refused []ask.Faults, err error) {
	var list ask.Faults
	domain, descriptors := in.domain, in.descriptors
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
	for i := range descriptors {
		qs = append(qs, ask.Question{})
		d, r := &descriptors[i], reading{Question: &qs[len(qs)-1]}
		r.Service = domain
		if d.negative {
			list.Add(placeOf(i)+".is_negative_hits", "is not served: units are given back by the receipt of their decision ("+Decision+")")
		}
		if in.hits > 0 {
			r.Cost = new(int64(in.hits))
		}
		if d.counted {
			r.Cost = ask.Units("hits_addend", int64(min(d.hits, uint64(rule.Unlimited)+1)), 0, &r.refused)
		}
		r.entries(i, d.entries, &list)
		if len(r.refused) > 0 {
			if qs = qs[:len(qs)-1]; refused == nil {
				refused = make([]ask.Faults, len(descriptors))
			}
			refused[i] = r.refused
		}
	}
	return qs, refused, list.Err()
}

// placeOf is where a descriptor is in its call.
func placeOf(i int) string { return "descriptors[" + strconv.Itoa(i) + "]" }

// entries reads the entries of descriptor i.
func (r *reading) entries(i int, entries []entry, list *ask.Faults) {
	if len(entries) > maxEntries {
		list.Add(placeOf(i)+".entries", fmt.Sprintf("has more than %d items", maxEntries))
		return
	}
	var given [8]string
	seen := given[:0]
	var labels map[string]string
	for _, e := range entries {
		if name := dimensionOf(e.key); name != "" {
			for _, other := range seen {
				if other == name {
					list.Add(placeOf(i)+".entries", "names "+name+" twice")
				}
			}
			seen = append(seen, name)
			r.dimension(name, e.value)
			continue
		}
		if wrong := ask.LabelName(e.key); wrong != "" || !utf8.ValidString(e.key) {
			list.Add(placeOf(i)+".entries", fmt.Sprintf("has a key that is not 1 to %d bytes of UTF-8", ask.MaxLabelKey))
			continue
		}
		if labels == nil {
			labels = make(map[string]string, len(entries))
		}
		labels[free(labels, e.key)] = fitting(e.value)
	}
	if len(labels) > ask.MaxLabels {
		list.Add(placeOf(i)+".entries", fmt.Sprintf("has more than %d labels", ask.MaxLabels))
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
