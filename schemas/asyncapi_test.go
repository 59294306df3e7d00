package schemas_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"penstock.dev/schemas/quotaeventsv1"
	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/usagev1"
)

// TestAsyncAPI guarantees that the description of the topics says what is so: their
// names, partitions and retention, the schema files with the names and fields
// in them, and nothing that it refers to is missing.
func TestAsyncAPI(t *testing.T) {
	t.Parallel()
	doc := readAsyncAPI(t)
	if doc.one("asyncapi") != "3.0.0" {
		t.Errorf("asyncapi is %q, want 3.0.0", doc.one("asyncapi"))
	}
	const day = 24 * 3600 * 1000
	for channel, want := range map[string]struct {
		topic, policy string
		partitions    int
		retention     int64 // milliseconds; 0: none
	}{
		"rules":        {rulesv1.Topic, "compact", rulesv1.Partitions, 0},
		"usage":        {usagev1.Topic, "delete", usagev1.Partitions, 7 * day},
		"quota-events": {quotaeventsv1.Topic, "delete", quotaeventsv1.Partitions, 400 * day},
	} {
		at, message := "channels/"+channel+"/", "components/messages/"+channel+"/"
		retention := ""
		if want.retention > 0 {
			retention = strconv.FormatInt(want.retention, 10)
		}
		newest := newestOf(t, want.topic)
		for path, value := range map[string]string{
			at + "address": want.topic, at + "bindings/kafka/topic": want.topic, at + "bindings/kafka/partitions": strconv.Itoa(want.partitions),
			at + "bindings/kafka/topicConfiguration/cleanup.policy": want.policy, at + "bindings/kafka/topicConfiguration/retention.ms": retention,
			message + "payload/schema/$ref": "./" + want.topic + ".avsc", message + "name": newest.Namespace + "." + newest.Name,
		} {
			if got := doc.one(path); got != value {
				t.Errorf("%s is %q, want %q", path, got, value)
			}
		}
		var fields []string
		for _, f := range newest.Fields {
			fields = append(fields, f.Name)
		}
		if got := doc.values[message+"x-fields"]; !slices.Equal(got, fields) {
			t.Errorf("%s has the fields %q, want %q", channel, got, fields)
		}
	}
	refs := 0
	for path, values := range doc.values {
		for _, v := range values {
			switch to, inside := strings.CutPrefix(v, "#/"); {
			case !strings.HasSuffix(path, "$ref"):
			case inside && !doc.has(to):
				t.Errorf("%s refers to %s, which is not there", path, v)
			case !inside:
				if _, err := os.Stat(v); err != nil {
					t.Errorf("%s: %v", path, err)
				}
				refs++
			default:
				refs++
			}
		}
	}
	if refs < 12 {
		t.Errorf("%d references were found: the test no longer reads them", refs)
	}
}

// An avsc is the part of a schema that is compared.
type avsc struct {
	Namespace, Name string
	Fields          []struct{ Name string }
}

func newestOf(t *testing.T, topic string) avsc {
	t.Helper()
	text, err := os.ReadFile(topic + ".avsc")
	if err != nil {
		t.Fatal(err)
	}
	var s avsc
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// An asyncAPI is the document flattened: the values at each path, "a/b/c", more than
// one of a list.
type asyncAPI struct{ values map[string][]string }

func (d asyncAPI) one(path string) string {
	if v := d.values[path]; len(v) == 1 {
		return v[0]
	}
	return strings.Join(d.values[path], ", ")
}

// has reports whether there is anything at or below a path.
func (d asyncAPI) has(path string) bool {
	for p := range d.values {
		if p == path || strings.HasPrefix(p, path+"/") {
			return true
		}
	}
	return false
}

// yamlLine is all of YAML that the document may use: maps and lists of scalars on
// lines of their own, indented by two, and items that are a map of one entry.
var yamlLine = regexp.MustCompile(`^((?:  )*)(- )?(?:([$\w.-]+):)? ?(.*)$`)

func readAsyncAPI(t *testing.T) asyncAPI {
	t.Helper()
	text, err := os.ReadFile("asyncapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	d := asyncAPI{map[string][]string{}}
	var path []string
	for i, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		m := yamlLine.FindStringSubmatch(line)
		if m == nil || len(m[1])/2 > len(path) {
			t.Fatalf("asyncapi.yaml:%d is not of the YAML that this test reads: %s", i+1, line)
		}
		path = path[:len(m[1])/2]
		value := m[4]
		if unquoted, err := strconv.Unquote(value); err == nil {
			value = unquoted
		}
		at := path
		if m[3] != "" {
			at = append(slices.Clone(path), m[3])
		}
		if value != "" {
			key := strings.Join(at, "/")
			d.values[key] = append(d.values[key], value)
		}
		if m[2] == "" {
			path = at
		}
	}
	return d
}
