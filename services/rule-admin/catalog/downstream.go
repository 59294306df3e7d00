package catalog

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog/strict"
)

// Bounds of services and endpoints.
const (
	maxUpstream = 2048 // bytes
	maxPath     = 1024 // bytes
	maxHosts    = 64
	maxHost     = 253 // characters
	maxOrigins  = 64
	maxOutcomes = 16
	maxMethod   = 32 // characters

	// MaxConnect, MaxResponse and MaxIdle bound a service's timeouts.
	MaxConnect  = 10 * time.Minute
	MaxResponse = time.Hour
	MaxIdle     = 24 * time.Hour
)

// A Service is a downstream service behind the gate.
type Service struct {
	Name            *string  `json:"name,omitzero"`
	Upstream        *string  `json:"upstream,omitzero"` // base URL
	Hosts           []string `json:"hosts,omitzero"`
	PathPrefix      *string  `json:"path_prefix,omitzero"`
	StripPrefix     *bool    `json:"strip_prefix,omitzero"`
	CORS            *CORS    `json:"cors,omitzero"`
	ConnectTimeout  *string  `json:"connect_timeout,omitzero"`
	ResponseTimeout *string  `json:"response_timeout,omitzero"`
	IdleTimeout     *string  `json:"idle_timeout,omitzero"`
}

// CORS is cross-origin resource sharing.
type CORS struct {
	AllowedOrigins []string `json:"allowed_origins,omitzero"`
}

// Kind is KindService.
func (*Service) Kind() Kind { return KindService }

func (s *Service) read(o *strict.Object) {
	s.Name, s.Upstream, s.Hosts = o.Text("name"), o.Text("upstream"), o.Texts("hosts")
	s.PathPrefix, s.StripPrefix = o.Text("path_prefix"), o.Bool("strip_prefix")
	if c := o.Object("cors"); c != nil {
		s.CORS = &CORS{AllowedOrigins: c.Texts("allowed_origins")}
		c.Close()
	}
	s.ConnectTimeout, s.ResponseTimeout, s.IdleTimeout = o.Text("connect_timeout"), o.Text("response_timeout"), o.Text("idle_timeout")
}

// Validate returns every fault.
func (s *Service) Validate() rule.Faults {
	var f rule.Faults
	name(&f, s.Name)
	if upstream, ok := required(&f, "upstream", s.Upstream); ok {
		if fault := upstreamFault(upstream); fault != "" {
			f.Add("upstream", "%s", fault)
		}
	}
	items(&f, "hosts", s.Hosts, maxHosts, hostFault)
	if s.PathPrefix != nil && *s.PathPrefix != "" {
		if fault := pathFault(*s.PathPrefix); fault != "" {
			f.Add("path_prefix", "%s", fault)
		}
	}
	if s.CORS != nil {
		items(&f, "cors.allowed_origins", s.CORS.AllowedOrigins, maxOrigins, originFault)
	}
	timeout(&f, "connect_timeout", s.ConnectTimeout, MaxConnect)
	timeout(&f, "response_timeout", s.ResponseTimeout, MaxResponse)
	timeout(&f, "idle_timeout", s.IdleTimeout, MaxIdle)
	return f
}

// Refs returns nothing.
func (*Service) Refs() []Ref { return nil }

// Timeout returns a duration that Validate accepted; zero when it is absent.
func Timeout(s *string) time.Duration {
	d, _ := time.ParseDuration(Or(s, "0s"))
	return d
}

// An Endpoint is a method and path template of a service.
type Endpoint struct {
	Service  *string  `json:"service,omitzero"`
	Method   *string  `json:"method,omitzero"` // absent: any
	Path     *string  `json:"path,omitzero"`   // behind the service's prefix
	Cost     *int64   `json:"cost,omitzero"`   // units of one call; absent: 1
	RefundOn []string `json:"refund_on,omitzero"`
}

// Kind is KindEndpoint.
func (*Endpoint) Kind() Kind { return KindEndpoint }

func (e *Endpoint) read(o *strict.Object) {
	e.Service, e.Method, e.Path = o.Text("service"), o.Text("method"), o.Text("path")
	e.Cost, e.RefundOn = o.Int("cost"), o.Texts("refund_on")
}

// Validate returns every fault.
func (e *Endpoint) Validate() rule.Faults {
	var f rule.Faults
	f.ID("service", Or(e.Service, ""))
	if e.Method != nil && *e.Method != "" {
		if fault := methodFault(*e.Method); fault != "" {
			f.Add("method", "%s", fault)
		}
	}
	if path, ok := required(&f, "path", e.Path); ok {
		if fault := templateFault(path); fault != "" {
			f.Add("path", "%s", fault)
		}
	}
	f.Range("cost", Or(e.Cost, 1), 0, rule.Unlimited)
	items(&f, "refund_on", e.RefundOn, maxOutcomes, outcomeFault)
	return f
}

// Refs returns the service.
func (e *Endpoint) Refs() []Ref { return ref(nil, "service", KindService, e.Service) }

// items wants at most most items, none of them faulty or there twice.
func items(f *rule.Faults, field string, values []string, most int, fault func(string) string) {
	if len(values) > most {
		f.Add(field, "has %d items, want at most %d", len(values), most)
	}
	seen := map[string]bool{}
	for i, v := range values {
		at := fmt.Sprintf("%s[%d]", field, i)
		if message := fault(v); message != "" {
			f.Add(at, "%s", message)
		} else if seen[v] {
			f.Add(at, "is %q, which is there twice", v)
		}
		seen[v] = true
	}
}

func timeout(f *rule.Faults, field string, s *string, most time.Duration) {
	if s == nil {
		return
	}
	switch d, ok := duration(f, field, *s); {
	case ok && (d <= 0 || d > most):
		f.Add(field, "is %v, want 1µs to %v", d, most)
	case ok && d%time.Microsecond != 0:
		f.Add(field, "is %v, want whole microseconds", d)
	}
}

// upstreamFault says why s is no base URL, or nothing.
func upstreamFault(s string) string {
	rest, ok := strings.CutPrefix(s, "http://")
	if !ok {
		rest, ok = strings.CutPrefix(s, "https://")
	}
	authority, path, hasPath := strings.Cut(rest, "/")
	switch {
	case len(s) > maxUpstream:
		return fmt.Sprintf("is %d bytes, want at most %d", len(s), maxUpstream)
	case !ok:
		return "is no URL that begins with http:// or https://"
	case strings.Contains(rest, "@"):
		return "has credentials, which do not belong there"
	case strings.ContainsAny(rest, "?#"):
		return "has a query or a fragment, want scheme, host and path only"
	}
	if fault := authorityFault(authority); fault != "" {
		return fault
	}
	if path = strings.TrimSuffix(path, "/"); hasPath && path != "" {
		return pathFault("/" + path)
	}
	return ""
}

// authorityFault says why s is no host with an optional port, or nothing.
func authorityFault(s string) string {
	host, port := s, ""
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		host, port = s[:i], s[i+1:]
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || port[0] == '+' {
			return fmt.Sprintf("has the port %.16q, want 1 to 65535", port)
		}
	}
	return nameFault(strings.ToLower(host))
}

// hostFault says why no request has the host s as a gateway spells it, or
// nothing.
func hostFault(s string) string {
	if want := spelledHost(s); want != s && spelledHost(want) == want && nameFault(want) == "" {
		return fmt.Sprintf("is %.64q, want %q as hosts are matched", s, want)
	}
	return nameFault(s)
}

// spelledHost is the one spelling by which gateways match a host, if s is one:
// lower case, without a port and without the dot at the end; IPv6 addresses in
// brackets, shortened.
func spelledHost(s string) string {
	if a, err := netip.ParseAddr(s); err == nil && a.Is6() {
		s = "[" + s + "]"
	}
	if i := strings.LastIndexByte(s, ':'); i > strings.IndexByte(s, ']') && strings.Trim(s[i+1:], "0123456789") == "" {
		s = s[:i]
	}
	if bare, ok := bracketed(s); ok {
		if a, err := netip.ParseAddr(bare); err == nil && a.Is6() {
			return "[" + a.WithZone("").String() + "]"
		}
	}
	return strings.ToLower(strings.TrimSuffix(s, "."))
}

// bracketed returns what is in brackets.
func bracketed(s string) (bare string, ok bool) {
	bare, open := strings.CutPrefix(s, "[")
	bare, closed := strings.CutSuffix(bare, "]")
	return bare, open && closed
}

// nameFault says why s is no host name in lower case and no address, or
// nothing.
func nameFault(s string) string {
	if bare, ok := strings.CutPrefix(s, "["); ok {
		bare, closed := strings.CutSuffix(bare, "]")
		if a, err := netip.ParseAddr(bare); err != nil || !closed || !a.Is6() || a.Zone() != "" {
			return fmt.Sprintf("is %.64q, which is no IPv6 address in brackets", s)
		}
		return ""
	}
	switch {
	case s == "":
		return "has no host"
	case len(s) > maxHost:
		return fmt.Sprintf("is %d characters, want at most %d", len(s), maxHost)
	case strings.Contains(s, ":"):
		return fmt.Sprintf("is %.64q, want a host without a port", s)
	case s != strings.ToLower(s):
		return fmt.Sprintf("is %.64q, want lower case", s)
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(s, "."), ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return fmt.Sprintf("is %.64q, which is no host name", s)
		}
	}
	return ""
}

// originFault says why s is no origin, or nothing.
func originFault(s string) string {
	if s == "*" {
		return ""
	}
	scheme, authority, ok := strings.Cut(s, "://")
	switch {
	case len(s) > rule.MaxText:
		return fmt.Sprintf("is %d bytes, want at most %d", len(s), rule.MaxText)
	case !ok || scheme != "http" && scheme != "https" || strings.ContainsAny(authority, "/?#@"):
		return fmt.Sprintf("is %.64q, want * or an origin like https://app.example.org", s)
	}
	if fault := authorityFault(authority); fault != "" {
		return fault
	}
	if want := scheme + "://" + spelledAuthority(scheme, authority); want != s {
		return fmt.Sprintf("is %.64q, want %q as browsers send it", s, want)
	}
	return ""
}

// spelledAuthority is the host and port of an origin as browsers send it: lower
// case, IPv6 addresses shortened and in hexadecimal only, the port without
// zeros in front and not the scheme's own.
func spelledAuthority(scheme, authority string) string {
	host, port := strings.ToLower(authority), ""
	if i := strings.LastIndexByte(host, ':'); i > strings.IndexByte(host, ']') {
		host, port = host[:i], ":"+strings.TrimLeft(host[i+1:], "0")
	}
	if scheme == "http" && port == ":80" || scheme == "https" && port == ":443" {
		port = ""
	}
	if bare, ok := bracketed(host); ok {
		if a, err := netip.ParseAddr(bare); err == nil {
			host = "[" + a.String() + "]"
			if b := a.As16(); a.Is4In6() {
				host = fmt.Sprintf("[::ffff:%x:%x]", int(b[12])<<8|int(b[13]), int(b[14])<<8|int(b[15]))
			}
		}
	}
	return host + port
}

// pathFault says why no path behind the gate could ever begin with s, or
// nothing. Paths are matched decoded, without doubled slashes, dot segments,
// ;parameters and trailing slash.
func pathFault(s string) string {
	switch {
	case len(s) > maxPath:
		return fmt.Sprintf("is %d bytes, want at most %d", len(s), maxPath)
	case !strings.HasPrefix(s, "/"):
		return fmt.Sprintf("is %.64q, want it to begin with /", s)
	case s == "/":
		return ""
	case strings.HasSuffix(s, "/"):
		return "ends with /, which is ignored in matching: leave it out"
	case strings.ContainsAny(s, `?#\%;*`):
		return `has one of ? # \ % ; *, which no matched path has`
	case strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f }):
		return "has a control character"
	}
	for segment := range strings.SplitSeq(s[1:], "/") {
		if segment == "" || segment == "." || segment == ".." {
			return "has an empty segment or a dot segment, which no matched path has"
		}
	}
	return ""
}

// templateFault says why s is no path template, or nothing. A segment may be a
// {parameter}.
func templateFault(s string) string {
	if fault := pathFault(s); fault != "" {
		return fault
	}
	seen := map[string]bool{}
	for segment := range strings.SplitSeq(s[1:], "/") {
		if !strings.ContainsAny(segment, "{}") {
			continue
		}
		param, ok := strings.CutPrefix(segment, "{")
		param, closed := strings.CutSuffix(param, "}")
		switch {
		case !ok || !closed || param == "" || strings.Trim(strings.ToLower(param), "abcdefghijklmnopqrstuvwxyz0123456789_") != "":
			return fmt.Sprintf("has the segment %.64q, want {name} of a-z A-Z 0-9 _", segment)
		case seen[param]:
			return fmt.Sprintf("has %.64q twice", segment)
		}
		seen[param] = true
	}
	return ""
}

func methodFault(s string) string {
	switch {
	case len(s) > maxMethod:
		return fmt.Sprintf("is %d characters, want at most %d", len(s), maxMethod)
	case strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "":
		return fmt.Sprintf("is %.64q, want a method in upper case", s)
	}
	return ""
}

// outcomeFault says why s is no upstream outcome, or nothing.
func outcomeFault(s string) string {
	if s == "timeout" || len(s) == 3 && s[0] >= '1' && s[0] <= '5' && s[1:] == "xx" {
		return ""
	}
	if n, err := strconv.Atoi(s); err == nil && len(s) == 3 && n >= 100 && n <= 599 {
		return ""
	}
	return fmt.Sprintf("is %.64q, want a status like 503, a class like 5xx, or timeout", s)
}
