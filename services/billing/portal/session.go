package portal

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"penstock.dev/services/billing/access"
)

// enter changes a one-time code for the portal's cookie, and leads to an address
// without the code.
func (h *handler) enter(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead { // whoever only looks does not use the code up
		return
	}
	code := r.URL.Query().Get("code")
	if code == "" {
		h.fail(w, r, http.StatusUnauthorized, "enter.bad")
		return
	}
	grant, token, err := h.Gate.Redeem(r.Context(), code, h.Now())
	switch {
	case errors.Is(err, access.ErrRefused):
		h.fail(w, r, http.StatusUnauthorized, "enter.bad")
		return
	case err != nil:
		h.Log.Warn("a portal code could not be redeemed", "error", err.Error())
		w.Header().Set("Retry-After", "5")
		h.fail(w, r, http.StatusServiceUnavailable, "error.503")
		return
	}
	http.SetCookie(w, &http.Cookie{
		Name: tokenCookie, Value: token, Path: cookiePath, Expires: grant.ExpiresAt,
		HttpOnly: true, Secure: h.Secure, SameSite: http.SameSiteLaxMode,
	})
	http.Redirect(w, r, "/portal/usage", http.StatusSeeOther)
}

// leave ends the session of this browser. The token it grew from, which a
// program may use, goes on.
func (h *handler) leave(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, &http.Cookie{
		Name: tokenCookie, Path: cookiePath, MaxAge: -1, HttpOnly: true, Secure: h.Secure, SameSite: http.SameSiteLaxMode,
	})
	if c, err := r.Cookie(tokenCookie); err == nil {
		grant, err := h.Gate.Verify(r.Context(), c.Value, h.Now())
		if err == nil {
			err = h.Gate.Revoke(r.Context(), grant.JTI, h.Now())
		}
		if err != nil && !errors.Is(err, access.ErrRefused) {
			h.Log.Warn("a portal session could not be ended", "error", err.Error())
			h.fail(w, r, http.StatusServiceUnavailable, "error.503")
			return
		}
	}
	h.fail(w, r, http.StatusOK, "out")
}

// switched answers a request for another language: it is kept in a cookie, and
// the page is asked for again without the parameter.
func (h *handler) switched(w http.ResponseWriter, r *http.Request) bool {
	q := r.URL.Query()
	tag := q.Get("lang")
	if tag == "" {
		return false
	}
	if l, ok := parseLang(tag); ok {
		http.SetCookie(w, &http.Cookie{
			Name: langCookie, Value: l.Code(), Path: cookiePath, MaxAge: 365 * 24 * 3600,
			HttpOnly: true, Secure: h.Secure, SameSite: http.SameSiteLaxMode,
		})
	}
	q.Del("lang")
	to := *r.URL
	to.RawQuery = q.Encode()
	// One slash: a path that begins with two would name a host.
	http.Redirect(w, r, "/"+strings.TrimLeft(to.RequestURI(), "/"), http.StatusSeeOther)
	return true
}

// langOf is the language of a request: the cookie's, else the best that its
// Accept-Language wants.
func langOf(r *http.Request) lang {
	if c, err := r.Cookie(langCookie); err == nil {
		if l, ok := parseLang(c.Value); ok {
			return l
		}
	}
	best, bestQ := english, 0.0
	for part := range strings.SplitSeq(r.Header.Get("Accept-Language"), ",") {
		tag, params, _ := strings.Cut(strings.TrimSpace(part), ";")
		q := 1.0
		if v, ok := strings.CutPrefix(strings.TrimSpace(params), "q="); ok {
			var err error
			if q, err = strconv.ParseFloat(v, 64); err != nil {
				continue
			}
		}
		if l, ok := parseLang(strings.TrimSpace(tag)); ok && q > bestQ {
			best, bestQ = l, q
		}
	}
	return best
}
