package spoiltest_test

import (
	"slices"
	"testing"

	"penstock.dev/services/internal/spoiltest"
)

type inner struct {
	text    string
	pointer *int
	few     [2]int64
	yes     bool
}

type outer struct {
	list  []inner
	bytes []byte
	in    struct{ texts []string }
	count int
}

// TestSpoil guarantees that nothing is left of what slices hold, beyond their
// length too, and that what holds them stays.
func TestSpoil(t *testing.T) {
	t.Parallel()

	o := outer{list: make([]inner, 2, 3), bytes: []byte("abc")[:1], count: 7}
	o.in.texts = []string{"a"}
	o.list[1] = inner{text: "a", pointer: new(int)}
	o.list = o.list[:1]
	spoiltest.Spoil(&o)
	want := inner{text: spoiltest.Garbage, few: [2]int64{-0x55, -0x55}, yes: true}
	if all := o.list[:3]; len(o.list) != 1 || !slices.Equal(all, []inner{want, want, want}) {
		t.Errorf("%+v, want %+v", all, want)
	}
	if b := o.bytes[:3]; len(o.bytes) != 1 || string(b) != "UUU" {
		t.Errorf("%q is left", b)
	}
	if o.in.texts[0] != spoiltest.Garbage || o.count != 7 {
		t.Errorf("%+v", o)
	}
}
