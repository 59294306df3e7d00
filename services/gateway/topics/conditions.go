package topics

import (
	"fmt"
	"sync"

	"penstock.dev/services/internal/condition"
	"penstock.dev/services/internal/rule"
)

// maxConditions bounds the conditions that are kept to be shared. Beyond it all
// are forgotten, and the next rules compile theirs anew.
const maxConditions = 4096

// conditions are compiled once for each text: it takes a hundred times as long
// as to decode a rule, and a plan's rules tend to have the same.
var conditions = struct {
	sync.Mutex
	compiled map[string]rule.Condition
}{compiled: map[string]rule.Condition{}}

// compile returns the condition that text says, nil for none. Its error wraps
// errInvalid.
func compile(text string) (rule.Condition, error) {
	if text == "" {
		return nil, nil
	}
	conditions.Lock()
	defer conditions.Unlock()
	if c := conditions.compiled[text]; c != nil {
		return c, nil
	}
	c, err := condition.Compile(text)
	if err != nil {
		return nil, fmt.Errorf("%w: rule.condition: %w", errInvalid, err)
	}
	if len(conditions.compiled) >= maxConditions {
		clear(conditions.compiled)
	}
	conditions.compiled[text] = c
	return c, nil
}
