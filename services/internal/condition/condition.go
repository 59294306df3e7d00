// Package condition compiles the conditions of rules: expressions in the Common
// Expression Language that must be true of a request beside a rule's selectors.
//
// An expression is untrusted: whoever may write rules writes it, and it runs
// inside every decision that its rule may apply to. So it is bounded in what it
// may say when it is compiled, and in what it may do each time it is evaluated.
// docs/adr/0054 says what the bounds are worth.
package condition

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"

	"penstock.dev/services/internal/rule"
)

// Bounds of an expression.
const (
	maxDepth = 50    // of nested operators and parentheses
	maxNodes = 2_000 // of its tree, macros expanded
	maxNests = 1     // comprehensions within comprehensions: none
	maxRegex = 100   // instructions of a pattern's program
	maxMatch = 2_048 // bytes of a text that is matched against a pattern

	// MaxCost is how much one evaluation may cost, in the units of CEL: about one
	// an operator, one for each ten bytes compared, and for a pattern one for each
	// ten bytes times each four bytes of pattern. An evaluation that would cost
	// more ends there, and the condition does not hold.
	MaxCost = 5_000
)

// ErrInvalid reports an expression that cannot be a condition. The text says
// where and why.
var ErrInvalid = errors.New("is no condition")

// The variables. All are strings but labels, a map of strings, and cost, whole
// units. A dimension that a request does not have is empty.
var variables = []struct {
	name string
	is   *cel.Type
	most uint64 // bytes, or items, that a gateway lets it have
	of   func(q *rule.Request) any
}{
	{"tenant", cel.StringType, maxValue, func(q *rule.Request) any { return types.String(q.Tenant) }},
	{"application", cel.StringType, maxValue, func(q *rule.Request) any { return types.String(q.Application) }},
	{"user", cel.StringType, maxValue, func(q *rule.Request) any { return types.String(q.User) }},
	{"api_key", cel.StringType, maxValue, func(q *rule.Request) any { return types.String(q.APIKey) }},
	{"service", cel.StringType, maxValue, func(q *rule.Request) any { return types.String(q.Service) }},
	{"endpoint", cel.StringType, maxValue, func(q *rule.Request) any { return types.String(q.Endpoint) }},
	{"method", cel.StringType, 32, func(q *rule.Request) any { return types.String(q.Method) }},
	{"path", cel.StringType, maxPath, func(q *rule.Request) any { return types.String(q.Path) }},
	{"client_ip", cel.StringType, 64, func(q *rule.Request) any {
		if !q.Address.IsValid() {
			return types.String("")
		}
		return types.String(q.Address.String())
	}},
	{"labels", cel.MapType(cel.StringType, cel.StringType), maxLabels, func(q *rule.Request) any {
		return types.NewStringStringMap(types.DefaultTypeAdapter, q.Labels)
	}},
	{"cost", cel.IntType, 1, func(q *rule.Request) any { return types.Int(q.Cost) }},
}

// environment is made once, and all expressions share it.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	opts := []cel.EnvOption{
		cel.ParserExpressionSizeLimit(rule.MaxCondition),
		cel.ParserRecursionLimit(maxDepth),
		cel.ParserErrorRecoveryLimit(1),
		cel.ExpressionNodeLimit(maxNodes),
		cel.RegexProgramSizeLimit(maxRegex),
		cel.ASTValidators(cel.ValidateComprehensionNestingLimit(maxNests), cel.ValidateRegexLiterals(), cel.ValidateRegexProgramSizeLimit(maxRegex)),
		cel.EagerlyValidateDeclarations(true),
		letters("lowerAscii", lower),
		letters("upperAscii", upper),
	}
	for _, v := range variables {
		opts = append(opts, cel.Variable(v.name, v.is))
	}
	return cel.NewEnv(opts...)
})

// letters is a function that changes the letters of a string, as the string
// extension of CEL has it. The rest of that extension is left out: what it
// makes of a string can be much longer than the string.
func letters(name string, change func(rune) rune) cel.EnvOption {
	return cel.Function(name, cel.MemberOverload("string_"+name, []*cel.Type{cel.StringType}, cel.StringType,
		cel.UnaryBinding(func(v ref.Val) ref.Val {
			s, ok := v.(types.String)
			if !ok {
				return types.MaybeNoSuchOverloadErr(v)
			}
			return types.String(strings.Map(change, string(s)))
		})))
}

func lower(r rune) rune {
	if r >= 'A' && r <= 'Z' {
		r += 'a' - 'A'
	}
	return r
}

func upper(r rune) rune {
	if r >= 'a' && r <= 'z' {
		r -= 'a' - 'A'
	}
	return r
}

// A Condition is a compiled expression. It is safe for concurrent use.
type Condition struct {
	text    string
	counted cel.Program // ends beyond its cost; counting takes four times the evaluation
	free    cel.Program // of one whose cost cannot exceed MaxCost, for requests that fit; nil: there is none
}

var _ rule.Condition = (*Condition)(nil)

// Compile returns the condition that text says. The error wraps ErrInvalid and
// names the place, e.g. "1:8: undeclared reference to 'tennant'".
func Compile(text string) (rule.Condition, error) {
	switch {
	case strings.TrimSpace(text) == "":
		return nil, fmt.Errorf("%w: is empty", ErrInvalid)
	case len(text) > rule.MaxCondition:
		return nil, fmt.Errorf("%w: is %d bytes, want at most %d", ErrInvalid, len(text), rule.MaxCondition)
	case !utf8.ValidString(text):
		return nil, fmt.Errorf("%w: is not UTF-8", ErrInvalid)
	}
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("environment of conditions: %w", err)
	}
	tree, issues := check(env, text)
	if issues.Err() != nil {
		return nil, fmt.Errorf("%w: %s", ErrInvalid, first(issues))
	}
	if !tree.OutputType().IsExactType(cel.BoolType) {
		return nil, fmt.Errorf("%w: is %s, want bool", ErrInvalid, tree.OutputType())
	}
	if fault := foreignPattern(tree.NativeRep()); fault != "" {
		return nil, fmt.Errorf("%w: %s", ErrInvalid, fault)
	}
	c := &Condition{text: text}
	evaluate := []cel.ProgramOption{cel.EvalOptions(cel.OptOptimize), cel.OptimizeRegex(matches(overloads.Matches), matches(overloads.MatchesString))}
	limits := []cel.ProgramOption{cel.CostLimit(MaxCost), cel.CostTracking(costs{})}
	if c.counted, err = env.Program(tree, slices.Concat(evaluate, limits)...); err != nil {
		return nil, fmt.Errorf("%w: %s", ErrInvalid, oneLine(err.Error()))
	}
	if worst, err := env.EstimateCost(tree, costs{}); err != nil || worst.Max > MaxCost {
		return c, nil //nolint:nilerr // its cost is not known, so it is counted
	}
	if c.free, err = env.Program(tree, evaluate...); err != nil {
		return nil, fmt.Errorf("%w: %s", ErrInvalid, oneLine(err.Error()))
	}
	return c, nil
}

// checking lets one text be checked at a time: cel-go's checker fills in a part
// of its environment when it meets the first mistake, while others read it.
var checking sync.Mutex

func check(env *cel.Env, text string) (*cel.Ast, *cel.Issues) {
	checking.Lock()
	defer checking.Unlock()
	return env.Compile(text)
}

// Text is the expression as it was written.
func (c *Condition) Text() string { return c.text }

// Holds reports whether the expression is true of a request. One that cannot be
// evaluated, or not within MaxCost, does not hold.
func (c *Condition) Holds(q *rule.Request) bool {
	holds, err := c.Evaluate(q)
	return holds && err == nil
}

// Evaluate is Holds with the reason why an expression could not be evaluated.
func (c *Condition) Evaluate(q *rule.Request) (bool, error) {
	program := c.counted
	if c.free != nil && fits(q) {
		program = c.free
	}
	got, _, err := program.Eval((*request)(q))
	if err != nil {
		return false, fmt.Errorf("condition %.64q: %s", c.text, oneLine(err.Error()))
	}
	return got == types.True, nil
}

// Sizes of a request, as gateways bound it.
const (
	maxValue    = 256
	maxPath     = 8192
	maxLabels   = 64
	maxLabelKey = 128
)

// fits reports whether a request is as small as the estimate of a cost assumes.
func fits(q *rule.Request) bool {
	for _, v := range [...]string{q.Tenant, q.Application, q.User, q.APIKey, q.Service, q.Endpoint} {
		if len(v) > maxValue {
			return false
		}
	}
	if len(q.Path) > maxPath || len(q.Method) > 32 || len(q.Labels) > maxLabels {
		return false
	}
	for name, value := range q.Labels {
		if len(name) > maxLabelKey || len(value) > maxValue {
			return false
		}
	}
	return true
}

// A request answers an expression's questions for variables.
type request rule.Request

// ResolveName returns the value of a variable.
func (r *request) ResolveName(name string) (any, bool) {
	for i := range variables {
		if variables[i].name == name {
			return variables[i].of((*rule.Request)(r)), true
		}
	}
	return nil, false
}

// Parent is nil: there are no other variables.
func (*request) Parent() interpreter.Activation { return nil }

// costs are those of our own functions, which read a string like CEL's own, and
// the sizes of the variables.
type costs struct{}

// CallCost is the cost of a call that was made; nil for CEL's own functions.
func (costs) CallCost(_, overload string, args []ref.Val, _ ref.Val) *uint64 {
	if overload != "string_lowerAscii" && overload != "string_upperAscii" {
		return nil
	}
	s, _ := args[0].(types.String)
	n := 1 + uint64(len(s))/10
	return &n
}

// EstimateCallCost is the cost of a call before it is made.
func (costs) EstimateCallCost(_, overload string, target *cost.AstNode, _ []cost.AstNode) *cost.CallEstimate {
	if overload != "string_lowerAscii" && overload != "string_upperAscii" {
		return nil
	}
	size := cost.SizeEstimate{Max: math.MaxUint64}
	if target != nil && (*target).ComputedSize() != nil {
		size = *(*target).ComputedSize()
	}
	return cost.NewCallEstimate(size.MultiplyByCostFactor(0.1).Add(cost.CallCostEstimate), &size)
}

// EstimateSize is how large a variable, or a part of one, can be.
func (costs) EstimateSize(node cost.AstNode) *cost.SizeEstimate {
	path := node.Path()
	if len(path) == 0 {
		return nil
	}
	for _, v := range variables {
		switch {
		case v.name != path[0]:
		case len(path) == 1:
			return &cost.SizeEstimate{Max: v.most}
		default: // the names and values of labels
			return &cost.SizeEstimate{Max: maxValue}
		}
	}
	return nil
}

// matches compiles the pattern of an overload of matches once, and does not run
// it over long texts: that takes time in proportion to the product of both.
func matches(overload string) *interpreter.RegexOptimization {
	return &interpreter.RegexOptimization{
		Function: overloads.Matches, OverloadID: overload, RegexIndex: 1,
		Factory: func(call interpreter.InterpretableCall, pattern string) (interpreter.InterpretableCall, error) {
			compiled, err := regexp.Compile(pattern)
			if err != nil {
				return nil, err
			}
			run := func(values ...ref.Val) ref.Val { return match(compiled, values[0]) }
			return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), call.Args(), run), nil
		},
	}
}

func match(pattern *regexp.Regexp, v ref.Val) ref.Val {
	s, ok := v.(types.String)
	switch {
	case !ok:
		return types.MaybeNoSuchOverloadErr(v)
	case len(s) > maxMatch:
		return types.NewErr("matches: %d bytes of text, want at most %d", len(s), maxMatch)
	}
	return types.Bool(pattern.MatchString(string(s)))
}

// foreignPattern refuses patterns that are not written in the expression: they
// would be compiled in every decision, and a client could write them.
func foreignPattern(tree *ast.AST) (fault string) {
	ast.PreOrderVisit(tree.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.CallKind || e.AsCall().FunctionName() != overloads.Matches {
			return
		}
		args := e.AsCall().Args()
		if pattern := args[len(args)-1]; pattern.Kind() != ast.LiteralKind {
			at := tree.SourceInfo().GetStartLocation(pattern.ID())
			fault = fmt.Sprintf("%d:%d: matches wants a pattern in quotes", at.Line(), at.Column()+1)
		}
	}))
	return fault
}

// first is the first of the issues, in one line that begins with its place.
func first(issues *cel.Issues) string {
	list := issues.Errors()
	if len(list) == 0 {
		return oneLine(issues.Err().Error())
	}
	e := list[0]
	return fmt.Sprintf("%d:%d: %s", max(1, e.Location.Line()), e.Location.Column()+1, oneLine(e.Message))
}

// oneLine bounds a message of the compiler, which repeats the input.
func oneLine(s string) string {
	const most = 300
	s = strings.ToValidUTF8(s, "")
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
