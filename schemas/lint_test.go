package schemas_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"penstock.dev/schemas/internal/codec/codectest"
)

// A node is a piece of a schema as JSON has it.
type node = map[string]any

// permanent are the fields that may have no default. They can never go away.
var permanent = strings.Fields("kind id version revision changed_at event_id decision_id ts stream_id sequence decision type tenant_id")

// change returns why text may not be the version after those of old: what the
// house refuses of it, what the house refuses of the step from each older
// version, and which of all the pairs cannot read each other.
func change(old []string, text string) []string {
	faults := lint(text)
	for i, before := range old {
		for _, f := range lintChange(before, text) {
			faults = append(faults, fmt.Sprintf("since version %d: %s", i+1, f))
		}
	}
	return append(faults, incompatible(append(slices.Clone(old), text))...)
}

// incompatible returns the pairs of versions of which one cannot read the other:
// what a registry at FULL_TRANSITIVE refuses.
func incompatible(versions []string) (faults []string) {
	for i, reader := range versions {
		for j, writer := range versions {
			if err := codectest.Compatible(reader, writer); err != nil {
				faults = append(faults, fmt.Sprintf("version %d cannot read version %d: %v", i+1, j+1, err))
			}
		}
	}
	return faults
}

func parse(text string) (node, error) {
	var root node
	err := json.Unmarshal([]byte(text), &root)
	return root, err
}

// named calls f for every definition of a named type.
func named(v any, f func(node)) {
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			named(x, f)
		}
	case node:
		switch v["type"] {
		case "record":
			f(v)
			for _, x := range fields(v) {
				named(x["type"], f)
			}
		case "enum", "fixed":
			f(v)
		case "array":
			named(v["items"], f)
		case "map":
			named(v["values"], f)
		}
	}
}

func fields(record node) []node {
	list, _ := record["fields"].([]any)
	var out []node
	for _, x := range list {
		if n, ok := x.(node); ok {
			out = append(out, n)
		}
	}
	return out
}

func str(n node, key string) string {
	s, _ := n[key].(string)
	return s
}

// lint returns what the house refuses of one schema.
func lint(text string) (faults []string) {
	add := func(format string, a ...any) { faults = append(faults, fmt.Sprintf(format, a...)) }
	root, err := parse(text)
	if err != nil {
		return []string{err.Error()}
	}
	if !strings.HasPrefix(str(root, "namespace"), "dev.penstock.") {
		add("namespace is not of dev.penstock")
	}
	seen := map[string]bool{}
	named(root, func(n node) {
		name := str(n, "name")
		if seen[name] {
			add("%s: name used twice", name)
		}
		seen[name] = true
		if str(n, "doc") == "" {
			add("%s: no doc", name)
		}
		if n["namespace"] != nil && n["namespace"] != root["namespace"] {
			add("%s: namespace of its own", name)
		}
		if n["aliases"] != nil {
			add("%s: aliases", name)
		}
		if n["type"] == "enum" {
			symbols, _ := n["symbols"].([]any)
			if n["default"] != "UNKNOWN" || len(symbols) == 0 || symbols[0] != "UNKNOWN" {
				add("%s: enum without UNKNOWN first and as its default", name)
			}
		}
		for _, f := range fields(n) {
			for _, fault := range lintField(f) {
				add("%s.%s: %s", name, str(f, "name"), fault)
			}
		}
	})
	return faults
}

var (
	bound = regexp.MustCompile(`\d`)
	since = regexp.MustCompile(`(micro|milli)seconds since 1970`)
)

func lintField(f node) (faults []string) {
	add := func(s string) { faults = append(faults, s) }
	doc := str(f, "doc")
	if doc == "" {
		add("no doc")
	}
	if f["aliases"] != nil {
		add("aliases")
	}
	value, given := f["default"]
	if !given && !slices.Contains(permanent, str(f, "name")) {
		add("no default")
	}
	typ := f["type"]
	if union, ok := typ.([]any); ok {
		if len(union) != 2 || union[0] != "null" || !given || value != nil {
			add("a union that is not [null, T] with default null")
		}
		typ = union[len(union)-1]
	}
	if n, ok := typ.(node); ok && n["type"] == "array" {
		items := n["items"]
		if _, ok := items.([]any); ok {
			add("union in an array")
		}
		if m, ok := items.(node); ok && (m["type"] == "array" || m["type"] == "map") {
			add("nested arrays or maps")
		}
		typ = "array"
	}
	if n, ok := typ.(node); ok && n["type"] != "record" && n["type"] != "enum" && n["type"] != "fixed" {
		logical := str(n, "logicalType")
		if logical == "decimal" {
			add("decimal")
		}
		if strings.HasPrefix(logical, "timestamp") && (!since.MatchString(doc) || !strings.Contains(doc, strings.TrimSuffix(strings.TrimPrefix(logical, "timestamp-"), "s")+"seconds")) {
			add("the unit of the time is not in its doc")
		}
		typ = n["type"]
	}
	switch typ {
	case "map", "float", "double", "null":
		add(fmt.Sprintf("type %s", typ))
	case "string", "bytes", "int", "long", "array":
		if !bound.MatchString(doc) {
			add("no bounds in its doc")
		}
	}
	if strings.HasSuffix(str(f, "name"), "_us") && !strings.Contains(doc, "microseconds") {
		add("named _us and not in microseconds")
	}
	return faults
}

// shape is a type without docs and without the insides of named types, which
// are compared on their own.
func shape(v any) any {
	switch v := v.(type) {
	case []any:
		var out []any
		for _, x := range v {
			out = append(out, shape(x))
		}
		return out
	case node:
		if name, ok := v["name"]; ok {
			return name
		}
		out := node{}
		for k, x := range v {
			if k != "doc" {
				out[k] = shape(x)
			}
		}
		return out
	}
	return v
}

// lintChange returns what the house refuses of the step from one version to a
// later one. No registry refuses any of it.
func lintChange(before, after string) (faults []string) {
	add := func(format string, a ...any) { faults = append(faults, fmt.Sprintf(format, a...)) }
	o, err := parse(before)
	if err != nil {
		return []string{err.Error()}
	}
	n, err := parse(after)
	if err != nil {
		return []string{err.Error()}
	}
	if o["namespace"] != n["namespace"] || o["name"] != n["name"] {
		add("the record has another name or namespace")
	}
	types := map[string]node{}
	named(n, func(n node) { types[str(n, "name")] = n })
	named(o, func(o node) {
		name := str(o, "name")
		n := types[name]
		if n == nil || n["type"] != o["type"] || n["size"] != o["size"] || n["namespace"] != o["namespace"] || n["logicalType"] != o["logicalType"] {
			add("%s: gone, or another type", name)
			return
		}
		if o["type"] == "enum" {
			was, _ := o["symbols"].([]any)
			is, _ := n["symbols"].([]any)
			if len(is) < len(was) || !reflect.DeepEqual(was, is[:len(was)]) || o["default"] != n["default"] {
				add("%s: symbols are only appended, and the default stays", name)
			}
		}
		for _, f := range lintFields(o, n) {
			add("%s.%s", name, f)
		}
	})
	return faults
}

// lintFields compares the fields of a record in two versions.
func lintFields(before, after node) (faults []string) {
	is := map[string]node{}
	for _, f := range fields(after) {
		is[str(f, "name")] = f
	}
	for _, was := range fields(before) {
		name := str(was, "name")
		f, ok := is[name]
		if !ok {
			faults = append(faults, name+": gone; say in its doc that it is retired")
			continue
		}
		if !reflect.DeepEqual(shape(was["type"]), shape(f["type"])) {
			faults = append(faults, name+": type changed")
		}
		d1, had := was["default"]
		d2, has := f["default"]
		if had != has || !reflect.DeepEqual(d1, d2) {
			faults = append(faults, name+": default changed")
		}
	}
	return faults
}

// TestHouseRules guarantees that every published version keeps the house rules,
// and that every version may follow every version before it.
func TestHouseRules(t *testing.T) {
	for _, p := range topics(t) {
		published := versions(t, p.name)
		for i, text := range published {
			for _, fault := range change(published[:i], text) {
				t.Errorf("%s version %d: %s", p.name, i+1, fault)
			}
		}
	}
}
