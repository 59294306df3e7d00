package registry

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/avro"
)

// A Reference names a schema of another subject whose types a schema uses.
type Reference struct {
	Name    string `json:"name"` // full name of the type, e.g. "com.acme.Address"
	Subject string `json:"subject"`
	Version int    `json:"version"`
}

// A Level says which schemas a new one must be compatible with, and in which
// direction. Backward: readers with the new schema understand what was written
// with the old. Forward: readers with the old understand what will be written
// with the new.
type Level string

// The levels of the Confluent API.
const (
	None               Level = "NONE"
	Backward           Level = "BACKWARD"
	BackwardTransitive Level = "BACKWARD_TRANSITIVE"
	Forward            Level = "FORWARD"
	ForwardTransitive  Level = "FORWARD_TRANSITIVE"
	Full               Level = "FULL"
	FullTransitive     Level = "FULL_TRANSITIVE"
)

// ParseLevel returns the level with that name, in any case.
func ParseLevel(s string) (Level, error) {
	l := Level(strings.ToUpper(s))
	if slices.Contains([]Level{None, Backward, BackwardTransitive, Forward, ForwardTransitive, Full, FullTransitive}, l) {
		return l, nil
	}
	return "", fmt.Errorf("invalid compatibility level %q", s)
}

func (l Level) backward() bool {
	return l == Backward || l == BackwardTransitive || l == Full || l == FullTransitive
}

func (l Level) forward() bool {
	return l == Forward || l == ForwardTransitive || l == Full || l == FullTransitive
}

func (l Level) transitive() bool {
	return l == BackwardTransitive || l == ForwardTransitive || l == FullTransitive
}

// A schema is parsed Avro and what makes it the same schema as another text.
type schema struct {
	text     string
	refs     []Reference
	parsed   *avro.Schema
	identity string
}

// parse parses text, whose references others resolves to their text and own
// references.
func parse(text string, refs []Reference, others func(Reference) (string, []Reference, error)) (*schema, error) {
	var cache avro.SchemaCache
	if err := parseReferences(&cache, refs, others, 0); err != nil {
		return nil, err
	}
	parsed, err := cache.Parse(text)
	if err != nil {
		return nil, err
	}
	id, err := identity(parsed, refs)
	if err != nil {
		return nil, err
	}
	return &schema{text: text, refs: refs, parsed: parsed, identity: id}, nil
}

// maxReferenceDepth bounds chains of references, which could be circular.
const maxReferenceDepth = 32

func parseReferences(cache *avro.SchemaCache, refs []Reference, others func(Reference) (string, []Reference, error), depth int) error {
	if depth > maxReferenceDepth {
		return fmt.Errorf("references are nested deeper than %d", maxReferenceDepth)
	}
	for _, r := range refs {
		text, more, err := others(r)
		if err != nil {
			return err
		}
		if err := parseReferences(cache, more, others, depth+1); err != nil {
			return err
		}
		if _, err := cache.Parse(text); err != nil {
			return fmt.Errorf("reference %s: %w", r.Name, err)
		}
	}
	return nil
}

// identity is equal for two texts that mean the same schema: white space, the
// order of JSON keys, {"type":"string"} for "string" and where the namespace is
// written do not matter; documentation, defaults and properties do.
func identity(s *avro.Schema, refs []Reference) (string, error) {
	root := s.Root()
	qualify(root, "")
	whole, err := root.Schema()
	if err != nil {
		return "", err
	}
	r, err := json.Marshal(refs)
	if err != nil {
		return "", err
	}
	return whole.String() + "\n" + string(r), nil
}

// qualify rewrites n so that every name is a full name. namespace is the one
// that encloses n.
func qualify(n *avro.SchemaNode, namespace string) {
	switch n.Type {
	case "record", "error", "enum", "fixed":
		if !strings.Contains(n.Name, ".") && n.Namespace != "" {
			n.Name = n.Namespace + "." + n.Name
		}
		n.Namespace = ""
		if i := strings.LastIndexByte(n.Name, '.'); i >= 0 {
			namespace = n.Name[:i]
		} else {
			namespace = ""
		}
	case "null", "boolean", "int", "long", "float", "double", "string", "bytes", "array", "map", "union":
	default: // a reference to a named type
		if !strings.Contains(n.Type, ".") && namespace != "" {
			n.Type = namespace + "." + n.Type
		}
	}
	for i := range n.Fields {
		qualify(&n.Fields[i].Type, namespace)
	}
	for i := range n.Branches {
		qualify(&n.Branches[i], namespace)
	}
	if n.Items != nil {
		qualify(n.Items, namespace)
	}
	if n.Values != nil {
		qualify(n.Values, namespace)
	}
}

// check returns what makes next unfit to follow the older schemas, oldest
// first, at level l; nothing when it is compatible.
func check(l Level, next *schema, older []*schema) []string {
	if !l.transitive() && len(older) > 1 {
		older = older[len(older)-1:]
	}
	var faults []string
	for _, o := range older {
		if l.backward() {
			if err := avro.CheckCompatibility(o.parsed, next.parsed); err != nil {
				faults = append(faults, fmt.Sprintf("not backward compatible: the new schema cannot read what was written with an older one: %v", err))
			}
		}
		if l.forward() {
			if err := avro.CheckCompatibility(next.parsed, o.parsed); err != nil {
				faults = append(faults, fmt.Sprintf("not forward compatible: an older schema cannot read what will be written with the new one: %v", err))
			}
		}
	}
	return faults
}
