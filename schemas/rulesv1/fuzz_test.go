package rulesv1_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/wire"
)

// FuzzDecodeRules guarantees that any bytes under any key are a record, skipped,
// set aside or poison: never a panic, never an error that is retried for ever.
// What is a record is within its bounds, and is written as it was read.
func FuzzDecodeRules(f *testing.F) {
	files, err := filepath.Glob("../testdata/rules.v1/*/*.bin")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte("rule/acme-month"), body)
		f.Add([]byte("tenant/acme"), body)
		f.Add([]byte("wallet/acme:credits"), body)
	}
	d := newDecoder()
	f.Fuzz(func(t *testing.T, key, body []byte) {
		r, err := d.Decode(t.Context(), key, wire.Frame(nil, 1, body))
		switch {
		case errors.Is(err, wire.ErrPoison):
			if !cmp.Equal(r, rulesv1.Record{}) {
				t.Fatalf("poison left %+v", r)
			}
			return
		case errors.Is(err, wire.ErrSkip), errors.Is(err, wire.ErrSetAside):
			if r.ID == "" || r.Version < 1 || r.Revision < 1 {
				t.Fatalf("%v left no identity: %+v", err, r)
			}
			return
		case err != nil:
			t.Fatal(err)
		}
		again, err := rulesv1.AppendRecord(nil, &r)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		back, err := d.Decode(t.Context(), key, wire.Frame(nil, 1, again))
		if err != nil || !cmp.Equal(back, r) {
			t.Fatalf("written again, it is read differently (%v): %s", err, cmp.Diff(r, back))
		}
	})
}
