// Package schemas holds what the services agree on: the three Avro schemas, in
// the newest version and in every version ever published.
//
// The packages below it turn records into bytes and back: rulesv1, usagev1 and
// quotaeventsv1, on the framing and schema look-up of wire. README.md says how
// a schema is changed.
package schemas

import (
	"embed"
	"io/fs"
	"strconv"
)

// The newest version of each schema, as Avro JSON text. It is what writers
// register and what readers resolve to.
var (
	//go:embed rules.v1.avsc
	RulesV1 string
	//go:embed usage.v1.avsc
	UsageV1 string
	//go:embed quota-events.v1.avsc
	QuotaEventsV1 string
)

//go:embed published
var published embed.FS

// Published returns every published version of a topic's schema, oldest first
// and the newest included, so that version n is at index n-1. A topic that has
// no schema has no versions.
func Published(topic string) []string {
	var versions []string
	for n := 1; ; n++ {
		text, err := fs.ReadFile(published, "published/"+topic+"/"+strconv.Itoa(n)+".avsc")
		if err != nil {
			return versions
		}
		versions = append(versions, string(text))
	}
}
