package esindex

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"

	"penstock.dev/services/usage-indexer/usagedoc"
)

// templateVersion rises with every change of the mapping or the settings. An older
// release leaves a newer one's template alone.
const templateVersion = 1

const (
	// templatePriority puts the template before those that a store brings along.
	templatePriority = 500
	// maxFields is how many fields an index may ever have.
	maxFields = 100
	// maxKeyword is how long a string may be and still be searched, in characters.
	// Beyond it is kept and not searched; a store refuses terms of more than
	// 32,766 bytes, and a character has at most four.
	maxKeyword = 8191
)

// mapping is how documents are searched: every field by name, and nothing that is
// not named.
func mapping() map[string]any {
	properties := map[string]any{}
	for _, f := range usagedoc.Fields() {
		in, name := properties, f.Name
		if outer, inner, nested := strings.Cut(f.Name, "."); nested {
			if in[outer] == nil {
				in[outer] = map[string]any{"type": "object", "dynamic": false, "properties": map[string]any{}}
			}
			in, name = in[outer].(map[string]any)["properties"].(map[string]any), inner //nolint:forcetypeassert // made above
		}
		in[name] = fieldMapping(f.Type)
	}
	return map[string]any{"dynamic": false, "properties": properties}
}

func fieldMapping(t usagedoc.Type) map[string]any {
	switch t {
	case usagedoc.Date:
		// Times are written in full. A bare number is refused rather than taken for
		// milliseconds, or for a year.
		return map[string]any{"type": "date", "format": "strict_date_optional_time"}
	case usagedoc.Whole:
		return map[string]any{"type": "long"}
	case usagedoc.Decimal:
		return map[string]any{"type": "double"}
	case usagedoc.Flag:
		return map[string]any{"type": "boolean"}
	case usagedoc.Opaque:
		return map[string]any{"type": "object", "enabled": false}
	case usagedoc.Keyword:
	}
	return map[string]any{"type": "keyword", "ignore_above": maxKeyword}
}

// template is the index template. Its _meta tells it from one with other
// settings.
func (s *Store) template() (body []byte, fingerprint string) {
	t := map[string]any{
		// Only names of the form of a date: others may keep indices beside ours.
		"index_patterns": []string{s.cfg.Prefix + "-*.*.*"},
		"priority":       templatePriority,
		"version":        templateVersion,
		"template": map[string]any{
			"settings": map[string]any{"index": map[string]any{
				"number_of_shards":   1,
				"number_of_replicas": s.cfg.Replicas,
				"refresh_interval":   strconv.FormatInt(s.cfg.Refresh.Milliseconds(), 10) + "ms", // fractions are refused
				"codec":              "best_compression",
				"mapping":            map[string]any{"total_fields": map[string]any{"limit": maxFields}},
			}},
			"mappings": mapping(),
		},
	}
	plain, _ := json.Marshal(t) //nolint:errchkjson // of maps, strings and numbers
	sum := sha256.Sum256(plain)
	fingerprint = hex.EncodeToString(sum[:8])
	t["_meta"] = map[string]any{"managed_by": "penstock usage-indexer", "fingerprint": fingerprint}
	body, _ = json.Marshal(t) //nolint:errchkjson // of maps, strings and numbers
	return body, fingerprint
}
