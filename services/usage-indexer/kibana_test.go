package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"penstock.dev/services/usage-indexer/usagedoc"
)

// kibana is the file of saved objects.
const kibana = "../../deploy/kibana/penstock.ndjson"

// A saved is one saved object: a line of the file.
type saved struct {
	ID         string `json:"id"`
	Type       string `json:"type"`
	Attributes struct {
		Title      string      `json:"title"`
		TimeField  string      `json:"timeFieldName"`
		Formats    string      `json:"fieldFormatMap"`
		VisState   string      `json:"visState"`
		UIState    string      `json:"uiStateJSON"`
		Panels     string      `json:"panelsJSON"`
		Options    string      `json:"optionsJSON"`
		Columns    []string    `json:"columns"`
		Sort       [][2]string `json:"sort"`
		SearchMeta struct {
			Source string `json:"searchSourceJSON"`
		} `json:"kibanaSavedObjectMeta"`
	} `json:"attributes"`
	References []struct {
		Name string `json:"name"`
		Type string `json:"type"`
		ID   string `json:"id"`
	} `json:"references"`
	Migration map[string]string `json:"migrationVersion"`
}

// A visState is what an aggregation-based visualisation asks and how it is drawn.
type visState struct {
	Title  string          `json:"title"`
	Type   string          `json:"type"`
	Aggs   []visAgg        `json:"aggs"`
	Params json.RawMessage `json:"params"`
}

// A visAgg is one metric, or one way to divide it.
type visAgg struct {
	ID      string `json:"id"`
	Enabled bool   `json:"enabled"`
	Type    string `json:"type"`
	Schema  string `json:"schema"`
	Params  struct {
		Field   string    `json:"field"`
		Percent []float64 `json:"percents"`
		OrderBy string    `json:"orderBy"`
		Order   string    `json:"order"`
		Size    int       `json:"size"`
		Missing bool      `json:"missingBucket"`
		Label   string    `json:"missingBucketLabel"`
		Filters []struct {
			Input lucene `json:"input"`
			Label string `json:"label"`
		} `json:"filters"`
	} `json:"params"`
}

// A lucene is a query in Lucene's own language, the only one that both Kibana
// and a store understand.
type lucene struct {
	Query    string `json:"query"`
	Language string `json:"language"`
}

// A source is what a search or a visualisation looks at.
type source struct {
	Query   lucene            `json:"query"`
	Filter  []json.RawMessage `json:"filter"`
	Index   string            `json:"indexRefName"`
	Unknown json.RawMessage   `json:"index"`
}

// format is the migration version of each type: that of Kibana 7.10, the last one
// that both Kibana 8 and OpenSearch Dashboards take.
var format = map[string]string{"index-pattern": "7.6.0", "search": "7.9.3", "visualization": "7.10.0", "dashboard": "7.9.3"}

// savedObjects reads the file.
func savedObjects(t *testing.T) []saved {
	t.Helper()
	text, err := os.ReadFile(kibana)
	if err != nil {
		t.Fatal(err)
	}
	var all []saved
	for line := range strings.Lines(string(text)) {
		var o saved
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatalf("line %d: %v", len(all)+1, err)
		}
		all = append(all, o)
	}
	return all
}

// strict reads JSON within JSON.
func strict(t *testing.T, o saved, name, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Errorf("%s %s: %s: %v", o.Type, o.ID, name, err)
	}
}

func (o saved) source(t *testing.T) (s source) {
	t.Helper()
	strict(t, o, "searchSourceJSON", o.Attributes.SearchMeta.Source, &s)
	return s
}

func (o saved) vis(t *testing.T) (v visState) {
	t.Helper()
	strict(t, o, "visState", o.Attributes.VisState, &v)
	return v
}

// TestKibanaObjects guarantees what can be said of the saved objects without a
// Kibana: each is whole and of a format that both programs import, whatever it
// refers to is in the file, and every text of JSON within it can be read.
func TestKibanaObjects(t *testing.T) {
	t.Parallel()

	all, count := savedObjects(t), map[string]int{}
	for i, o := range all {
		count[o.Type]++
		if o.ID == "" || o.Attributes.Title == "" || o.References == nil {
			t.Errorf("line %d lacks an id, a title or references", i+1)
		}
		if slices.ContainsFunc(all[:i], func(p saved) bool { return p.ID == o.ID && p.Type == o.Type }) {
			t.Errorf("%s %s is there twice", o.Type, o.ID)
		}
		if format[o.Type] == "" || len(o.Migration) != 1 || o.Migration[o.Type] != format[o.Type] {
			t.Errorf("%s %s has the format %v, want %q", o.Type, o.ID, o.Migration, format[o.Type])
		}
		for _, r := range o.References {
			if !slices.ContainsFunc(all[:i], func(p saved) bool { return p.ID == r.ID && p.Type == r.Type }) {
				t.Errorf("%s %s refers to %s %s, which does not come before it", o.Type, o.ID, r.Type, r.ID)
			}
		}
		if o.Type != "index-pattern" {
			refersToAll(t, o)
		}
	}
	if count["index-pattern"] != 1 || count["search"] != 1 || count["visualization"] < 6 || count["dashboard"] != 1 {
		t.Errorf("the file has %v", count)
	}
	if p := all[0]; p.Attributes.Title != "ratelimit-usage-*" || p.Attributes.TimeField != "ts" {
		t.Errorf("the data view is %q by %q", p.Attributes.Title, p.Attributes.TimeField)
	}
}

// refersToAll checks that the names used within an object are those of its
// references, each used once.
func refersToAll(t *testing.T, o saved) {
	t.Helper()
	var used []string
	src := o.source(t)
	if src.Query.Language != "lucene" || src.Filter == nil || src.Unknown != nil {
		t.Errorf("%s %s: its source is %+v", o.Type, o.ID, src)
	}
	if o.Type == "dashboard" {
		used = panels(t, o)
	} else {
		used = append(used, src.Index)
	}
	if o.Type == "visualization" {
		var state map[string]any
		strict(t, o, "uiStateJSON", o.Attributes.UIState, &state)
	}
	for _, r := range o.References {
		if i := slices.Index(used, r.Name); i < 0 {
			t.Errorf("%s %s never uses its reference %s", o.Type, o.ID, r.Name)
		} else {
			used = slices.Delete(used, i, i+1)
		}
	}
	if len(used) > 0 {
		t.Errorf("%s %s uses references %q that it does not have", o.Type, o.ID, used)
	}
}

// panels returns the names of a dashboard's panels, and checks that they lie on
// the grid of 48 columns and on nothing else.
func panels(t *testing.T, o saved) []string {
	t.Helper()
	var ps []struct {
		Grid struct {
			X int    `json:"x"`
			Y int    `json:"y"`
			W int    `json:"w"`
			H int    `json:"h"`
			I string `json:"i"`
		} `json:"gridData"`
		Index string `json:"panelIndex"`
		Ref   string `json:"panelRefName"`
	}
	strict(t, o, "panelsJSON", o.Attributes.Panels, &ps)
	var options map[string]bool
	strict(t, o, "optionsJSON", o.Attributes.Options, &options)
	var names []string
	for i, p := range ps {
		g := p.Grid
		if g.X < 0 || g.W < 1 || g.X+g.W > 48 || g.H < 1 || g.I != p.Index {
			t.Errorf("panel %s lies at %+v", p.Index, g)
		}
		for _, q := range ps[:i] {
			h := q.Grid
			if p.Index == q.Index || g.X < h.X+h.W && h.X < g.X+g.W && g.Y < h.Y+h.H && h.Y < g.Y+g.H {
				t.Errorf("panels %s and %s lie on each other", p.Index, q.Index)
			}
		}
		names = append(names, p.Ref)
	}
	return names
}

// takes says of which types of field an aggregation may be asked.
func takes(aggregation string) []usagedoc.Type {
	switch aggregation {
	case "date_histogram":
		return []usagedoc.Type{usagedoc.Date}
	case "terms":
		return []usagedoc.Type{usagedoc.Keyword, usagedoc.Whole, usagedoc.Flag}
	case "cardinality":
		return []usagedoc.Type{usagedoc.Keyword, usagedoc.Whole, usagedoc.Date, usagedoc.Flag}
	case "sum", "avg", "min", "max", "percentiles":
		return []usagedoc.Type{usagedoc.Whole, usagedoc.Decimal}
	}
	return nil
}

// fieldFault says what is wrong with asking an aggregation of a field, or "". The
// fields of counters are of no use to Kibana: those of several counters are not
// kept apart.
func fieldFault(aggregation, field string) string {
	i := slices.IndexFunc(usagedoc.Fields(), func(f usagedoc.Field) bool { return f.Name == field })
	switch {
	case i < 0:
		return fmt.Sprintf("there is no field %q", field)
	case strings.HasPrefix(field, "counters."):
		return fmt.Sprintf("%s is of several counters at once", field)
	case aggregation != "" && !slices.Contains(takes(aggregation), usagedoc.Fields()[i].Type):
		return fmt.Sprintf("%s cannot be asked of %s", aggregation, field)
	}
	return ""
}

// TestKibanaFields guarantees that every field which a saved object shows, asks
// or sorts by is in the index, of a type for which that can be asked.
func TestKibanaFields(t *testing.T) {
	t.Parallel()

	for _, o := range savedObjects(t) {
		check := func(aggregation, field string) {
			if fault := fieldFault(aggregation, field); fault != "" {
				t.Errorf("%s %s: %s", o.Type, o.ID, fault)
			}
		}
		switch o.Type {
		case "index-pattern":
			var formats map[string]any
			strict(t, o, "fieldFormatMap", o.Attributes.Formats, &formats)
			for field := range formats {
				check("", field)
			}
		case "search":
			for _, c := range o.Attributes.Columns {
				check("", c)
			}
			for _, s := range o.Attributes.Sort {
				check("date_histogram", s[0])
			}
		case "visualization":
			v := o.vis(t)
			if v.Title != o.Attributes.Title {
				t.Errorf("visualization %s has two titles", o.ID)
			}
			for _, a := range v.Aggs {
				if a.Type != "count" && a.Type != "filters" {
					check(a.Type, a.Params.Field)
				}
			}
		}
	}
	for _, fault := range []string{fieldFault("sum", "ruleId"), fieldFault("terms", "labels"), fieldFault("max", "counters.consumed"), fieldFault("", "tenant")} {
		if fault == "" {
			t.Error("a field that cannot be asked so passes")
		}
	}
}

// TestKibanaDrawings guarantees that a visualisation draws what it asks for: its
// series are its metrics, every agg is enabled, of a role that its type has, and
// sorts by what there is.
func TestKibanaDrawings(t *testing.T) {
	t.Parallel()

	roles := map[string][]string{
		"metric": {"metric", "group"}, "table": {"metric", "bucket", "split"},
		"histogram": {"metric", "segment", "group"}, "line": {"metric", "segment", "group"},
		"area": {"metric", "segment", "group"}, "horizontal_bar": {"metric", "segment", "group"},
	}
	for _, o := range savedObjects(t) {
		if o.Type != "visualization" {
			continue
		}
		v := o.vis(t)
		var metrics, series []string
		for _, a := range v.Aggs {
			if !a.Enabled || !slices.Contains(roles[v.Type], a.Schema) {
				t.Errorf("%s: agg %s is of role %q, enabled %v, in a %s", o.ID, a.ID, a.Schema, a.Enabled, v.Type)
			}
			if a.Schema == "metric" {
				metrics = append(metrics, a.ID)
			}
		}
		for _, a := range v.Aggs {
			if by := a.Params.OrderBy; a.Type == "terms" && by != "_key" && !slices.Contains(metrics, by) {
				t.Errorf("%s: agg %s sorts by %q", o.ID, a.ID, by)
			}
		}
		var params struct {
			Series []struct {
				Data struct {
					ID string `json:"id"`
				} `json:"data"`
			} `json:"seriesParams"`
		}
		strict(t, o, "params", string(v.Params), &params)
		for _, s := range params.Series {
			series = append(series, s.Data.ID)
		}
		if series != nil && !slices.Equal(series, metrics) {
			t.Errorf("%s draws %q, asks for %q", o.ID, series, metrics)
		}
	}
}
