package topics_test

import (
	"fmt"
	"testing"

	"penstock.dev/services/gateway/topics"
	"penstock.dev/services/internal/rule"
)

// TestConditionsAreShared guarantees that rules with the same text have one
// condition, and that texts without end take no memory without end.
func TestConditionsAreShared(t *testing.T) {
	one, err := topics.Compile("cost > 3")
	if err != nil {
		t.Fatal(err)
	}
	if other, err := topics.Compile("cost > 3"); err != nil || other != one {
		t.Errorf("compiled again: %v %v", other, err)
	}
	if none, err := topics.Compile(""); none != nil || err != nil {
		t.Errorf("no text is %v %v", none, err)
	}
	for i := range topics.MaxConditions {
		if c, err := topics.Compile(fmt.Sprintf("cost > %d + 1000", i)); err != nil || !c.Holds(&rule.Request{Cost: int64(i) + 1001}) {
			t.Fatalf("condition %d: %v", i, err)
		}
	}
	if other, err := topics.Compile("cost > 3"); err != nil || other == one || !other.Holds(&rule.Request{Cost: 4}) {
		t.Errorf("after %d others it is still kept, or %v", topics.MaxConditions, err)
	}
}
