package canon

import (
	"net/netip"
	"strings"
)

// Method returns the one spelling of a method: upper case. Methods are case
// sensitive on the wire, but some frameworks fold them, and a rule for POST
// must then not be passed by "post".
func Method(m string) string { return strings.ToUpper(m) }

// Host returns the one spelling of a host: lower case, without a port and
// without the dot at the end; IPv6 addresses in brackets, shortened.
func Host(host string) string {
	if strings.HasPrefix(host, "[") {
		end := strings.IndexByte(host, ']')
		if end < 0 {
			return ""
		}
		a, err := netip.ParseAddr(host[1:end])
		if err != nil {
			return ""
		}
		return "[" + a.WithZone("").String() + "]"
	}
	host, _, _ = strings.Cut(host, ":")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// AppendHeader appends the one spelling of a header's name: lower case, and a
// hyphen for whatever is neither a letter nor a digit. Gateway interfaces (CGI,
// WSGI, Rack, PHP) turn X-Tenant-Id, X_Tenant_Id and X.Tenant.Id into one
// variable.
func AppendHeader(dst []byte, name string) []byte {
	for i := 0; i < len(name); i++ {
		switch c := name[i]; {
		case 'A' <= c && c <= 'Z':
			dst = append(dst, c+'a'-'A')
		case 'a' <= c && c <= 'z' || '0' <= c && c <= '9':
			dst = append(dst, c)
		default:
			dst = append(dst, '-')
		}
	}
	return dst
}
