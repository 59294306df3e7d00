package catalog

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog/strict"
)

// A Threshold is a level that is announced: 80 per cent of the limit, or
// {"left": 10} units. Exactly one of the two is set.
type Threshold struct {
	Percent *int64
	Left    *int64
}

// MarshalJSON returns the number or the object.
func (t Threshold) MarshalJSON() ([]byte, error) {
	if t.Percent != nil {
		return json.Marshal(*t.Percent)
	}
	return json.Marshal(map[string]int64{"left": Or(t.Left, 0)})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (t *Threshold) UnmarshalJSON(text []byte) error {
	if err := json.Unmarshal(text, &t.Percent); err == nil {
		return nil
	}
	var o struct {
		Left *int64 `json:"left"`
	}
	err := json.Unmarshal(text, &o)
	t.Percent, t.Left = nil, o.Left
	return err
}

func readThresholds(levels []strict.Either) []Threshold {
	out := []Threshold{}
	for _, l := range levels {
		if l.Object == nil {
			out = append(out, Threshold{Percent: l.Int})
			continue
		}
		out = append(out, Threshold{Left: l.Object.Int("left")})
		l.Object.Close()
	}
	return out
}

// thresholds sorts the levels as they are published. Of a quota or a wallet that
// names none 80 and 100 per cent are announced; an empty list is none.
func (r *Rule) thresholds(f *rule.Faults, kind rule.Kind) rule.Thresholds {
	var out rule.Thresholds
	if r.Thresholds == nil && (kind == rule.Quota || kind == rule.Wallet) {
		return rule.Thresholds{Percent: []int32{80, 100}}
	}
	before := len(*f)
	for i, t := range r.Thresholds {
		at := fmt.Sprintf("thresholds[%d]", i)
		switch {
		case t.Percent != nil:
			f.Range(at, *t.Percent, 1, 100)
			p := int32(max(0, min(*t.Percent, 101))) // out of bounds whenever it was
			if slices.Contains(out.Percent, p) {
				f.Add(at, "is %d per cent, which is there twice", *t.Percent)
			}
			out.Percent = append(out.Percent, p)
		case t.Left != nil:
			f.Range(at+".left", *t.Left, 0, rule.Unlimited)
			if slices.Contains(out.Left, *t.Left) {
				f.Add(at+".left", "is %d, which is there twice", *t.Left)
			}
			out.Left = append(out.Left, *t.Left)
		default:
			f.Add(at+".left", "is missing")
		}
	}
	if len(*f) > before {
		return rule.Thresholds{} // said once is enough
	}
	slices.Sort(out.Percent)
	slices.SortFunc(out.Left, func(a, b int64) int { return cmp.Compare(b, a) })
	return out
}
