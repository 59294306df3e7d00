package schemastest

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Bounded returns the paths of the fields of a schema that a value may be wrong
// for: all but booleans and fixed, at any depth, as rule.match.tenant.
func Bounded(schema string) ([]string, error) {
	var root map[string]any
	if err := json.Unmarshal([]byte(schema), &root); err != nil {
		return nil, err
	}
	w := walker{records: map[string]map[string]any{}, enums: map[string]bool{}}
	w.record(root, "")
	if len(w.paths) == 0 {
		return nil, fmt.Errorf("no fields in %.80s", schema)
	}
	return w.paths, nil
}

type walker struct {
	records map[string]map[string]any
	enums   map[string]bool
	paths   []string
}

func (w *walker) record(n map[string]any, prefix string) {
	if name, ok := n["name"].(string); ok {
		w.records[name] = n
	}
	fields, _ := n["fields"].([]any)
	for _, f := range fields {
		if f, ok := f.(map[string]any); ok {
			w.typ(f["type"], prefix+fmt.Sprint(f["name"]))
		}
	}
}

func (w *walker) typ(t any, path string) {
	switch t := t.(type) {
	case string:
		switch {
		case strings.Contains(" string bytes int long array ", " "+t+" "), w.enums[t]:
			w.paths = append(w.paths, path)
		case w.records[t] != nil:
			w.record(w.records[t], path+".")
		}
	case []any:
		w.typ(t[len(t)-1], path)
	case map[string]any:
		switch t["type"] {
		case "record":
			w.record(t, path+".")
		case "array":
			w.paths = append(w.paths, path)
			if items, ok := t["items"].(map[string]any); ok {
				w.typ(items, path)
			}
		case "enum":
			w.enums[fmt.Sprint(t["name"])] = true
			w.paths = append(w.paths, path)
		default:
			if s, ok := t["type"].(string); ok && t["name"] == nil {
				w.typ(s, path)
			}
		}
	}
}
