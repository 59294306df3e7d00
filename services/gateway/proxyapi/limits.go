package proxyapi

import (
	"net/http"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/tell"
)

// exposedHeaders lets scripts of another origin read the headers about limits.
const exposedHeaders = "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, RateLimit-Policy, RateLimit, " + tell.Degraded + ", Retry-After"

// setLimits writes what a decision says about limits.
func setLimits(h http.Header, d *decide.Decision) {
	if d.Degraded {
		h[http.CanonicalHeaderKey(tell.Degraded)] = []string{"true"}
		return
	}
	values := tell.Limits(d)
	for i := range values {
		if values[i] != "" {
			h[tell.Names[i]] = values[i : i+1 : i+1]
		}
	}
}
