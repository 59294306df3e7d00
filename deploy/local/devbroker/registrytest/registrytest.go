// Package registrytest is the list of calls that Penstock and its tools make to
// a schema registry, with the answers they rely on. Every registry must pass
// it: the development one does in its own tests, another can be given by URL.
package registrytest

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/sr"
)

// Schemas of one record, each made from the one before.
const (
	V1 = `{"type":"record","name":"Thing","namespace":"penstock.test","fields":[{"name":"a","type":"string","doc":"First."}]}`
	V2 = `{"type":"record","name":"Thing","namespace":"penstock.test","fields":[{"name":"a","type":"string","doc":"First."},{"name":"b","type":"long","default":0}]}`
	// Broken renames a field, which no level but NONE lets pass.
	Broken = `{"type":"record","name":"Thing","namespace":"penstock.test","fields":[{"name":"z","type":"string"}]}`
)

// Calls runs the list against the registry at url. It uses subjects of its own
// and leaves them deleted.
func Calls(t *testing.T, url string) {
	t.Helper()
	cl, err := sr.NewClient(sr.URLs(url))
	if err != nil {
		t.Fatal(err)
	}
	c := caller{t, cl, "registrytest-" + strconv.FormatInt(time.Now().UnixNano(), 36) + "-value"}
	c.registers()
	c.levels()
	c.deletes()
}

type caller struct {
	t       *testing.T
	cl      *sr.Client
	subject string
}

func avro(text string) sr.Schema { return sr.Schema{Schema: text} }

// refused checks that err carries one of the codes.
func (c caller) refused(what string, err error, codes ...int) {
	c.t.Helper()
	var re *sr.ResponseError
	if !errors.As(err, &re) || !slices.Contains(codes, re.ErrorCode) {
		c.t.Errorf("%s: %v, want an error with code %v", what, err, codes)
	}
}

// must stops the list: what follows builds on the call.
func (c caller) must(what string, err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
}

// equal compares schema texts without their white space.
func equal(a, b string) bool {
	strip := func(s string) string { return strings.Join(strings.Fields(s), "") }
	return strip(a) == strip(b)
}

func (c caller) registers() {
	ctx := c.t.Context()
	set := c.cl.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatFullTransitive}, c.subject)
	c.must("set the level", set[0].Err)
	_, err := c.cl.LookupSchema(ctx, c.subject, avro(V1))
	c.refused("look up in a subject that is not there", err, 40401, 40403)
	_, err = c.cl.SchemaByVersion(ctx, c.subject, 1)
	c.refused("a version of a subject that is not there", err, 40401, 40402)
	_, err = c.cl.SchemaByID(ctx, 1<<30)
	c.refused("an id that was never given", err, 40403)

	id1, err := c.cl.RegisterSchema(ctx, c.subject, avro(V1), -1, -1)
	c.must("register", err)
	again, err := c.cl.RegisterSchema(ctx, c.subject, avro(V1), -1, -1)
	if err != nil || again != id1 {
		c.t.Errorf("register again: %d, %v, want %d", again, err, id1)
	}
	id2, err := c.cl.RegisterSchema(ctx, c.subject, avro(V2), -1, -1)
	if err != nil || id2 == id1 {
		c.t.Errorf("register a second: %d, %v, want another id than %d", id2, err, id1)
	}
	_, err = c.cl.RegisterSchema(ctx, c.subject, avro(Broken), -1, -1)
	c.refused("register an incompatible one", err, http.StatusConflict)
	_, err = c.cl.RegisterSchema(ctx, c.subject, avro(`{"type":"recrod"}`), -1, -1)
	c.refused("register what is no schema", err, 42201)

	c.reads(id1, id2)
}

func (c caller) reads(id1, id2 int) {
	ctx := c.t.Context()
	versions, err := c.cl.SubjectVersions(ctx, c.subject)
	if err != nil || !slices.Equal(versions, []int{1, 2}) {
		c.t.Errorf("versions: %v, %v, want 1 and 2", versions, err)
	}
	byID, err := c.cl.SchemaByID(ctx, id1)
	if err != nil || !equal(byID.Schema, V1) || byID.Type != sr.TypeAvro {
		c.t.Errorf("schema by id: %+v, %v", byID, err)
	}
	latest, err := c.cl.SchemaByVersion(ctx, c.subject, -1)
	if err != nil || latest.Version != 2 || latest.ID != id2 || !equal(latest.Schema.Schema, V2) {
		c.t.Errorf("latest: %+v, %v, want version 2 with id %d", latest, err, id2)
	}
	found, err := c.cl.LookupSchema(ctx, c.subject, avro(V1))
	if err != nil || found.ID != id1 || found.Version != 1 || found.Subject != c.subject {
		c.t.Errorf("look up: %+v, %v, want version 1 with id %d", found, err, id1)
	}
	subjects, err := c.cl.SubjectsByID(ctx, id1)
	if err != nil || !slices.Contains(subjects, c.subject) {
		c.t.Errorf("subjects by id: %v, %v, want %s", subjects, err, c.subject)
	}
	uses, err := c.cl.SchemaVersionsByID(ctx, id2)
	if err != nil || !slices.Contains(uses, sr.SubjectVersion{Subject: c.subject, Version: 2}) {
		c.t.Errorf("versions by id: %v, %v, want version 2", uses, err)
	}
	all, err := c.cl.Subjects(ctx)
	if err != nil || !slices.Contains(all, c.subject) {
		c.t.Errorf("subjects: %v, %v, want %s among them", all, err, c.subject)
	}
	_, err = c.cl.SchemaByVersion(ctx, c.subject, 3)
	c.refused("a version that is not there", err, 40402)
}

func (c caller) levels() {
	ctx := c.t.Context()
	for _, tt := range []struct {
		text string
		want bool
	}{{V2, true}, {Broken, false}} {
		got, err := c.cl.CheckCompatibility(ctx, c.subject, -1, avro(tt.text))
		if err != nil || got.Is != tt.want {
			c.t.Errorf("compatible %.60s…: %+v, %v, want %v", tt.text, got, err, tt.want)
		}
	}
	got := c.cl.Compatibility(ctx, c.subject)
	if got[0].Err != nil || got[0].Level != sr.CompatFullTransitive {
		c.t.Errorf("level: %+v, want FULL_TRANSITIVE", got)
	}
	set := c.cl.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatNone}, c.subject)
	c.must("set the level to NONE", set[0].Err)
	if _, err := c.cl.RegisterSchema(ctx, c.subject, avro(Broken), -1, -1); err != nil {
		c.t.Errorf("register under NONE: %v", err)
	}
	if reset := c.cl.ResetCompatibility(ctx, c.subject); reset[0].Err != nil {
		c.t.Errorf("reset the level: %v", reset[0].Err)
	}
}

func (c caller) deletes() {
	ctx := c.t.Context()
	gone, err := c.cl.LookupSchema(ctx, c.subject, avro(V2))
	c.must("look up", err)
	c.must("delete a version", c.cl.DeleteSchema(ctx, c.subject, 2, sr.SoftDelete))
	_, err = c.cl.SchemaByVersion(ctx, c.subject, 2)
	c.refused("a deleted version", err, 40402, 40406)
	if _, err := c.cl.SchemaByID(ctx, gone.ID); err != nil {
		c.t.Errorf("by the id of a deleted version: %v, want the schema: what was written stays readable", err)
	}
	_, err = c.cl.DeleteSubject(ctx, c.subject, sr.HardDelete)
	c.refused("delete for good what was not deleted", err, 40405)
	versions, err := c.cl.DeleteSubject(ctx, c.subject, sr.SoftDelete)
	if err != nil || !slices.Equal(versions, []int{1, 3}) {
		c.t.Errorf("delete the subject: %v, %v, want 1 and 3", versions, err)
	}
	all, err := c.cl.Subjects(ctx)
	if err != nil || slices.Contains(all, c.subject) {
		c.t.Errorf("subjects: %v, %v, want %s no more", all, err, c.subject)
	}
	all, err = c.cl.Subjects(sr.WithParams(ctx, sr.ShowDeleted))
	if err != nil || !slices.Contains(all, c.subject) {
		c.t.Errorf("subjects with the deleted: %v, %v, want %s", all, err, c.subject)
	}
	if _, err = c.cl.DeleteSubject(ctx, c.subject, sr.HardDelete); err != nil {
		c.t.Errorf("delete for good: %v", err)
	}
	_, err = c.cl.DeleteSubject(context.WithoutCancel(ctx), c.subject, sr.SoftDelete)
	c.refused("delete what is gone", err, 40401)
}
