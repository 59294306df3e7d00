package usagev1_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"
)

// FuzzDecodeUsage guarantees that any bytes under any key are an event or
// poison: never a panic, never an error that is retried for ever. What is an
// event is within its bounds, and is written as it was read.
func FuzzDecodeUsage(f *testing.F) {
	files, err := filepath.Glob("../testdata/usage.v1/*/*.bin")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte("acme"), body)
		f.Add([]byte("203.0.113.9"), body)
	}
	d := newDecoder()
	f.Fuzz(func(t *testing.T, key, body []byte) {
		e, err := d.Decode(t.Context(), key, wire.Frame(nil, 1, body))
		if err != nil {
			if !errors.Is(err, wire.ErrPoison) || !cmp.Equal(e, usagev1.Event{}) {
				t.Fatalf("%v, and %+v", err, e)
			}
			return
		}
		again := usagev1.AppendEvent(nil, &e)
		back, err := d.Decode(t.Context(), key, wire.Frame(nil, 1, again))
		if err != nil || !cmp.Equal(back, e) || !bytes.Equal(usagev1.AppendEvent(nil, &back), again) {
			t.Fatalf("written again, it is read differently (%v): %s", err, cmp.Diff(e, back))
		}
	})
}
