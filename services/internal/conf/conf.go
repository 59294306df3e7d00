// Package conf reads a service's knobs from flags and the environment. Every
// knob has one name: flag -kafka-brokers is environment PENSTOCK_KAFKA_BROKERS.
// A flag wins over the environment, which wins over the default. There are no
// configuration files (docs/adr/0021).
package conf

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"penstock.dev/services/internal/boot"
)

// A Secret prints as *** everywhere but through Reveal. It holds a pointer,
// because fmt reads the unexported fields of a struct without asking String.
// The zero Secret is empty.
type Secret struct{ value *string }

// NewSecret returns a secret that reveals v.
func NewSecret(v string) Secret { return Secret{&v} }

// String hides the secret.
func (s Secret) String() string {
	if s.Reveal() == "" {
		return ""
	}
	return "***"
}

// GoString hides the secret from %#v.
func (s Secret) GoString() string { return s.String() }

// MarshalText hides the secret from JSON and logs.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Reveal returns the secret itself.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// A Knob describes one setting, for -help and for the table in a README.
type Knob struct {
	Flag    string // without the dash, e.g. kafka-brokers
	Env     string // e.g. PENSTOCK_KAFKA_BROKERS
	Default string // as it would be typed; empty means none
	Usage   string // with unit and bounds
}

// A Set is the knobs of one service. It is not safe for concurrent use.
type Set struct {
	fs     *flag.FlagSet
	getenv func(string) string
	knobs  []Knob
	check  bool
}

// New returns an empty set for the service that reads the environment through
// getenv. It already has the knob -check.
func New(service string, getenv func(string) string) *Set {
	s := &Set{fs: flag.NewFlagSet(service, flag.ContinueOnError), getenv: getenv}
	s.fs.SetOutput(io.Discard)
	s.fs.BoolVar(&s.check, "check", false, "validate the configuration and exit")
	return s
}

// Knobs returns the knobs in the order they were declared.
func (s *Set) Knobs() []Knob { return s.knobs }

// Check reports whether -check was given: the service validates its
// configuration and exits.
func (s *Set) Check() bool { return s.check }

// String declares a text knob.
func (s *Set) String(p *string, name, def, usage string) {
	s.add(name, def, usage)
	s.fs.StringVar(p, name, def, usage)
}

// Strings declares a comma-separated list. Empty items are dropped.
func (s *Set) Strings(p *[]string, name, def, usage string) {
	s.add(name, def, usage)
	set := func(v string) error {
		*p = nil
		for item := range strings.SplitSeq(v, ",") {
			if item = strings.TrimSpace(item); item != "" {
				*p = append(*p, item)
			}
		}
		return nil
	}
	_ = set(def)
	s.fs.Func(name, usage, set)
}

// Secret declares a text knob whose value is never printed.
func (s *Set) Secret(p *Secret, name, usage string) {
	s.add(name, "", usage)
	s.fs.Func(name, usage, func(v string) error { *p = NewSecret(v); return nil })
}

// Duration declares a knob in Go's duration syntax, e.g. 50ms.
func (s *Set) Duration(p *time.Duration, name string, def time.Duration, usage string) {
	s.add(name, def.String(), usage)
	s.fs.DurationVar(p, name, def, usage)
}

// Int declares a whole number.
func (s *Set) Int(p *int, name string, def int, usage string) {
	s.add(name, fmt.Sprint(def), usage)
	s.fs.IntVar(p, name, def, usage)
}

// Bool declares a switch.
func (s *Set) Bool(p *bool, name string, def bool, usage string) {
	s.add(name, fmt.Sprint(def), usage)
	s.fs.BoolVar(p, name, def, usage)
}

// Parse reads the environment and then args. Its error wraps boot.ErrConfig,
// names each knob that was refused, and for -help lists them all.
func (s *Set) Parse(args []string) error {
	var errs []error
	for _, k := range s.knobs {
		if v := s.getenv(k.Env); v != "" {
			if err := s.fs.Set(k.Flag, v); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", k.Env, err))
			}
		}
	}
	switch err := s.fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return fmt.Errorf("%w of %s\n%s", boot.ErrConfig, s.fs.Name(), s.help())
	case err != nil:
		errs = append(errs, err)
	case s.fs.NArg() > 0:
		errs = append(errs, fmt.Errorf("unexpected argument %q", s.fs.Arg(0)))
	}
	return Refuse(errs...)
}

// Refuse joins the faults found in a configuration into one error that wraps
// boot.ErrConfig, or returns nil when there are none.
func Refuse(faults ...error) error {
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("%w refused:\n%w", boot.ErrConfig, err)
	}
	return nil
}

// Env is the environment variable of a flag.
func Env(name string) string {
	return "PENSTOCK_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

func (s *Set) add(name, def, usage string) {
	s.knobs = append(s.knobs, Knob{Flag: name, Env: Env(name), Default: def, Usage: usage})
}

func (s *Set) help() string {
	var b strings.Builder
	b.WriteString("  -check\n\tvalidate the configuration and exit\n")
	for _, k := range s.knobs {
		fmt.Fprintf(&b, "  -%s (%s)\n\t%s", k.Flag, k.Env, k.Usage)
		if k.Default != "" {
			fmt.Fprintf(&b, " (default %s)", k.Default)
		}
		b.WriteString("\n")
	}
	return b.String()
}
