package canon_test

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"penstock.dev/services/gateway/canon"
)

// TestParsePath guarantees one spelling for each path: what rules match and
// what the upstream is sent, for the spellings of FC-03 and the ones that
// attackers add to them.
func TestParsePath(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, raw, match, upstream string }{
		{"a plain path stays", "/v1/export", "/v1/export", "/v1/export"},
		{"the root stays", "/", "/", "/"},
		{"a doubled slash is one", "/v1//export", "/v1/export", "/v1/export"},
		{"so are many, anywhere", "///v1///export", "/v1/export", "/v1/export"},
		{"slashes alone are the root", "////", "/", "/"},
		{"a trailing slash is passed on and not matched", "/v1/export/", "/v1/export", "/v1/export/"},
		{"several are one", "/v1/export///", "/v1/export", "/v1/export/"},
		{"a dot segment is nothing", "/v1/./export", "/v1/export", "/v1/export"},
		{"a dot segment at the end is a slash", "/v1/export/.", "/v1/export", "/v1/export/"},
		{"two dots take back a segment", "/v1/x/../export", "/v1/export", "/v1/export"},
		{"and at the end leave a slash", "/v1/export/x/..", "/v1/export", "/v1/export/"},
		{"escaped dots are dots", "/v1/x/%2e%2E/export", "/v1/export", "/v1/export"},
		{"half escaped dots are dots", "/v1/x/.%2e/%2e/export", "/v1/export", "/v1/export"},
		{"three dots are a name", "/v1/.../export", "/v1/.../export", "/v1/.../export"},
		{"a name may begin with a dot", "/.well-known/x", "/.well-known/x", "/.well-known/x"},
		{"escapes of unreserved characters are decoded", "/v1/%65xport", "/v1/export", "/v1/export"},
		{"all of them", "/%41%7a%30%2d%2e%5f%7e", "/Az0-._~", "/Az0-._~"},
		{"parameters are passed on and not matched", "/v1/export;a=1", "/v1/export", "/v1/export;a=1"},
		{"on every segment", "/v1;v=2/export;a=1;b/x", "/v1/export/x", "/v1;v=2/export;a=1;b/x"},
		{"escaped parameters too", "/v1/export%3ba=1", "/v1/export", "/v1/export%3Ba=1"},
		{"a segment of parameters has no name to match", "/v1/;x/export/;y", "/v1/export", "/v1/;x/export/;y"},
		{"two dots take back such a segment alone", "/v1/;x/../export", "/v1/export", "/v1/export"},
		{"a reserved escape is matched decoded and sent as it was", "/v1/items%3acancel", "/v1/items:cancel", "/v1/items%3Acancel"},
		{"and unescaped likewise", "/v1/items:cancel", "/v1/items:cancel", "/v1/items:cancel"},
		{"an escaped question mark is a character", "/a%3fb", "/a?b", "/a%3Fb"},
		{"an escaped number sign is a character", "/a%23b", "/a#b", "/a%23b"},
		{"an escaped percent sign is a character", "/100%25", "/100%", "/100%25"},
		{"also before what is no escape", "/100%25off", "/100%off", "/100%25off"},
		{"UTF-8 has one spelling", "/caf%c3%a9", "/café", "/caf%C3%A9"},
		{"the same when it was not escaped", "/café", "/café", "/caf%C3%A9"},
		{"what URLs may not hold is escaped", "/a b\"<>^`{|}[]", "/a b\"<>^`{|}[]", "/a%20b%22%3C%3E%5E%60%7B%7C%7D%5B%5D"},
		{"case is kept", "/V1/Export", "/V1/Export", "/V1/Export"},
		{"a plus is a plus", "/a+b%2Bc", "/a+b+c", "/a+b%2Bc"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := canon.ParsePath(tt.raw)
			if err != nil {
				t.Fatalf("ParsePath(%q): %v", tt.raw, err)
			}
			if got.Match != tt.match || got.Upstream != tt.upstream {
				t.Errorf("ParsePath(%q) = match %q, upstream %q, want %q, %q", tt.raw, got.Match, got.Upstream, tt.match, tt.upstream)
			}
		})
	}
}

// TestParsePathRefuses guarantees that a path which two programs could read
// differently is refused, with a text that says what is wrong with it.
func TestParsePathRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, raw, text string }{
		{"an encoded slash", "/v1%2Fexport", "encoded slash"},
		{"in lower case", "/v1%2fexport", "encoded slash"},
		{"an encoded backslash", "/v1%5Cexport", "backslash"},
		{"a backslash", `/v1\export`, "backslash"},
		{"a zero byte", "/v1/export%00", "zero byte"},
		{"a double encoding of dots", "/v1/%252e%252e/v1/export", "another escape"},
		{"a double encoding of a slash", "/v1%252fexport", "another escape"},
		{"a triple encoding", "/v1/%25252e", "another escape"},
		{"a double encoding assembled from single ones", "/v1/%25%32%65", "another escape"},
		{"a double encoding in IIS spelling", "/v1/%25u002e", "another escape"},
		{"a broken escape", "/v1/%zz", "two hexadecimal digits"},
		{"a cut escape", "/v1/%4", "two hexadecimal digits"},
		{"an IIS escape", "/v1/%u002e", "two hexadecimal digits"},
		{"an overlong slash", "/v1/%c0%afexport", "overlong"},
		{"an overlong dot", "/v1/%c0%ae%c0%ae/x", "overlong"},
		{"an overlong slash of three bytes", "/v1/%e0%80%af", "overlong"},
		{"an overlong slash of four bytes", "/v1/%f0%80%80%af", "overlong"},
		{"dots with parameters", "/v1/x/..;a=1/export", "dot segment with parameters"},
		{"dots with empty parameters", "/v1/x/..;/export", "dot segment with parameters"},
		{"dots with escaped parameters", "/v1/x/..%3b/export", "dot segment with parameters"},
		{"a dot with parameters", "/v1/.;/export", "dot segment with parameters"},
		{"climbing above the root", "/../x", "climbs"},
		{"climbing above the root on the way", "/v1/../../v1", "climbs"},
		{"climbing above the root by escapes", "/%2e%2e/x", "climbs"},
		{"going up and down for ever", strings.Repeat("/x/..", 17), "too many"},
		{"a fragment", "/v1/export#x", "fragment"},
		{"a query", "/v1/export?x", "question mark"},
		{"a relative path", "v1/export", "begin with a slash"},
		{"an asterisk", "*", "begin with a slash"},
		{"nothing", "", "begin with a slash"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := canon.ParsePath(tt.raw)
			if !errors.Is(err, canon.ErrPath) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("ParsePath(%q) = %+v, %v, want an ambiguous path for %q", tt.raw, got, err, tt.text)
			}
		})
	}
}

// TestClimbs guarantees that a path cannot leave a prefix that it was in, nor
// reach one through a way above it.
func TestClimbs(t *testing.T) {
	t.Parallel()
	prefixes := []string{"/payments", "/search", "/a/b"}
	depth := func(match string) int {
		for _, prefix := range prefixes {
			if match == prefix || strings.HasPrefix(match, prefix+"/") {
				return canon.Segments(prefix)
			}
		}
		return 0
	}
	tests := []struct {
		raw  string
		want bool
	}{
		{"/payments/v1/pay", false},
		{"/payments/v1/../pay", false},
		{"/payments/v1/x/../../pay", false},
		{"/payments/../nowhere", true},
		{"/payments/./..", true},
		{"/payments//../payments/pay", true},
		{"/payments/v1/../../payments/pay", true},
		{"/payments/../search/x", true},
		{"/x/../payments/pay", true},
		{"/x/../nowhere", false},
		{"/a/c/../b/d", true},
		{"/a/b/c/../d", false},
		{"/a/b/c/../../d", true},
		{"/payments;x/;y/../v1", false},
		{"/payments;x/;y/../../v1", true},
	}
	for _, tt := range tests {
		p, err := canon.ParsePath(tt.raw)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Climbs(depth); got != tt.want {
			t.Errorf("%s climbs: %v, want %v", tt.raw, got, tt.want)
		}
	}
}

// TestBehind guarantees that stripping a prefix keeps the rest of the path as
// it is, and never less than a slash.
func TestBehind(t *testing.T) {
	t.Parallel()
	tests := []struct {
		raw    string
		prefix string
		want   string
	}{
		{"/payments/v1/pay", "/payments", "/v1/pay"},
		{"/payments/v1/pay", "/payments/", "/v1/pay"},
		{"/payments/v1/pay/", "/payments", "/v1/pay/"},
		{"/payments", "/payments", "/"},
		{"/payments/", "/payments", "/"},
		{"/payments;x/v1/pay;y", "/payments", "/v1/pay;y"},
		{"/;z/payments/v1/pay", "/payments", "/v1/pay"},
		{"/%70ayments//v1/%70ay", "/payments", "/v1/pay"},
		{"/a/b/c", "/a/b", "/c"},
		{"/a/b/c", "", "/a/b/c"},
		{"/a/b/c", "/", "/a/b/c"},
	}
	for _, tt := range tests {
		p, err := canon.ParsePath(tt.raw)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Behind(canon.Segments(tt.prefix)); got != tt.want {
			t.Errorf("%s behind %q = %q, want %q", tt.raw, tt.prefix, got, tt.want)
		}
	}
}

// FuzzParsePath guarantees for every input: a canonical path is its own
// canonical path; a strict upstream, a lax one (parameters cut before or after
// decoding, empty segments dropped, dot segments resolved) and one that decodes
// twice all arrive at the path that was matched; and Go sends the very bytes.
func FuzzParsePath(f *testing.F) {
	for _, s := range []string{
		"/v1/export", "/v1//export/", "/v1/./x/../%65xport;a=1", "/%252e", "/%25%32e", "/a/..;/b", "/;x/../y",
		"/%c0%ae", "/caf%c3%a9/é", "/a%3fb%23c%3b", "/100%25/%2541", "/[x]{y}|z", "/a b", "/.%2e/", "/%25u002e",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		p, err := canon.ParsePath(raw)
		if err != nil {
			if !errors.Is(err, canon.ErrPath) {
				t.Fatalf("%q: %v is no ErrPath", raw, err)
			}
			return
		}
		again, err := canon.ParsePath(p.Upstream)
		if err != nil || again.Match != p.Match || again.Upstream != p.Upstream {
			t.Fatalf("%q -> %+v -> %+v, %v", raw, p, again, err)
		}
		once, err := url.PathUnescape(p.Upstream)
		if err != nil {
			t.Fatalf("%q: %v", p.Upstream, err)
		}
		if got := lax(once); got != p.Match {
			t.Fatalf("%q: an upstream that cuts after decoding sees %q, rules see %q", raw, got, p.Match)
		}
		cut, err := url.PathUnescape(lax(p.Upstream))
		if err != nil || lax(cut) != p.Match {
			t.Fatalf("%q: an upstream that cuts before decoding sees %q (%v), rules see %q", raw, cut, err, p.Match)
		}
		if twice, err := url.PathUnescape(once); err == nil && twice != once {
			t.Fatalf("%q: decoding twice gives %q, once %q", raw, twice, once)
		}
		u := url.URL{Path: once, RawPath: p.Upstream}
		if got := u.EscapedPath(); got != p.Upstream {
			t.Fatalf("%q: Go would send %q, want %q", raw, got, p.Upstream)
		}
		if n := canon.Segments(p.Match); p.Behind(0) != p.Upstream || !strings.HasPrefix(p.Behind(n), "/") || p.Climbs(func(string) int { return 0 }) {
			t.Fatalf("%q: behind nothing %q, behind all %q", raw, p.Behind(0), p.Behind(n))
		}
	})
}

// lax reads a path as a lenient server does: parameters cut, empty segments
// dropped, dot segments resolved.
func lax(path string) string {
	var out []string
	for segment := range strings.SplitSeq(path, "/") {
		segment, _, _ = strings.Cut(segment, ";")
		switch segment {
		case "", ".":
		case "..":
			out = out[:max(0, len(out)-1)]
		default:
			out = append(out, segment)
		}
	}
	return "/" + strings.Join(out, "/")
}

// TestParsePathOfPlainPathsIsFree guarantees that the usual request pays
// nothing for its path.
func TestParsePathOfPlainPathsIsFree(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { _, _ = canon.ParsePath("/v1/export/") }); n != 0 {
		t.Errorf("ParsePath allocates %v times, want 0", n)
	}
}

func BenchmarkParsePath(b *testing.B) {
	for name, raw := range map[string]string{"plain": "/payments/v1/pay", "escaped": "/payments/v1/%70ay/caf%C3%A9;x=1"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := canon.ParsePath(raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
