package portal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"penstock.dev/services/billing/access"
	"penstock.dev/services/billing/account"
)

// The portal's cookies.
const (
	tokenCookie = "penstock_portal"
	langCookie  = "penstock_lang"
	cookiePath  = "/portal"
)

// policy lets a page load what this server serves under its own name and
// nothing else: no script or style in a page, no frames, no other host.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// A Gate tells whose a token is. *access.Gate is one.
type Gate interface {
	Verify(ctx context.Context, token string, now time.Time) (access.Grant, error)
	Redeem(ctx context.Context, code string, now time.Time) (access.Grant, string, error)
	Revoke(ctx context.Context, jti string, now time.Time) error
}

// An Audit keeps who asked for what was not theirs.
type Audit interface {
	// Denied keeps an access that was answered with "not found". Whether the
	// object is another tenant's is for the audit to find out.
	Denied(ctx context.Context, d access.Denial) error
	// HasKey reports whether an API key is, or ever was, the tenant's.
	HasKey(ctx context.Context, tenant, key string) (bool, error)
}

// Config is what the portal needs.
type Config struct {
	Gate    Gate
	Reader  account.Reader
	Audit   Audit
	Secure  bool // the portal is reached by https: cookies say so
	Now     func() time.Time
	Timeout time.Duration // for one request's work; past it 503, or a page without what could not be read
	Log     *slog.Logger
}

type handler struct {
	Config
	assets assets
	pages  [langs]map[string]*template.Template
	read   *readings
}

// Handler serves everything below /portal.
func Handler(c Config) (http.Handler, error) {
	files, err := loadAssets()
	if err != nil {
		return nil, err
	}
	h := &handler{Config: c, assets: files, read: newReadings()}
	for l := range langs {
		if h.pages[l], err = h.parse(l); err != nil {
			return nil, err
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+assetRoot+"{name}", files.serve)
	mux.HandleFunc("GET /portal/enter", h.enter)
	mux.HandleFunc("POST /portal/leave", h.leave)
	for pattern, page := range map[string]func(*visit) error{
		"/portal":                      (*visit).usage,
		"/portal/{$}":                  (*visit).usage,
		"/portal/usage":                (*visit).usage,
		"/portal/usage.csv":            (*visit).usageCSV,
		"/portal/usage/live":           (*visit).usageLive,
		"/portal/cuts":                 (*visit).cuts,
		"/portal/cuts/live":            (*visit).cutsLive,
		"/portal/wallet":               (*visit).wallet,
		"/portal/invoices":             (*visit).invoices,
		"/portal/invoices/{id}":        (*visit).invoice,
		"/portal/invoices/{id}/{file}": (*visit).invoiceFile,
		"/portal/":                     (*visit).nothing,
	} {
		mux.Handle(pattern, h.page(page))
	}
	return h.guard(mux), nil
}

// guard sets the headers of every answer, bounds its work, and refuses a token in a URL
// before anything looks at it.
func (h *handler) guard(next http.Handler) http.Handler {
	cross := http.NewCrossOriginProtection()
	cross.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.fail(w, r, http.StatusForbidden, "error.405")
	}))
	next = cross.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("Content-Security-Policy", policy)
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("X-Frame-Options", "DENY")
		head.Set("Referrer-Policy", "no-referrer")
		head.Set("Cross-Origin-Opener-Policy", "same-origin")
		head.Set("Cross-Origin-Resource-Policy", "same-origin")
		head.Set("Cache-Control", "private, no-store")
		head.Set("Vary", "Accept-Language, Authorization, Cookie")
		if h.Secure {
			head.Set("Strict-Transport-Security", "max-age=31536000")
		}
		if tokenInURL(r.URL) {
			h.fail(w, r, http.StatusUnauthorized, "error.401")
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), h.Timeout)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// gone reports whether nobody waits for the answer.
func gone(r *http.Request) bool { return errors.Is(r.Context().Err(), context.Canceled) }

// tokenInURL reports whether a URL carries a token, or means to: URLs end up in
// histories, logs and referrers.
func tokenInURL(u *url.URL) bool {
	for name, values := range u.Query() {
		switch strings.ToLower(name) {
		case "token", "access_token", "id_token", "jwt", "bearer", "authorization":
			return true
		}
		for _, v := range values {
			if access.LooksLikeToken(v) {
				return true
			}
		}
	}
	for part := range strings.SplitSeq(u.Path, "/") {
		if access.LooksLikeToken(part) {
			return true
		}
	}
	return false
}

// A visit is one request of somebody whom a token let in.
type visit struct {
	*handler
	w     http.ResponseWriter
	r     *http.Request
	lang  lang
	now   time.Time
	grant access.Grant
	who   account.Profile
}

// errInput reports a parameter that no list of ours offers.
var errInput = errors.New("invalid parameter")

// page lets in whom a token lets in, and answers what goes wrong.
func (h *handler) page(of func(*visit) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			h.fail(w, r, http.StatusMethodNotAllowed, "error.405")
			return
		}
		if h.switched(w, r) {
			return
		}
		v := &visit{handler: h, w: w, r: r, lang: langOf(r), now: h.Now()}
		var err error
		if v.grant, err = h.Gate.Verify(r.Context(), tokenOf(r), v.now); err == nil {
			v.who, err = h.Reader.Profile(r.Context(), v.grant.Tenant)
		}
		if err == nil {
			if v.who.Zone == nil {
				v.who.Zone = time.UTC
			}
			v.now = v.now.In(v.who.Zone)
			err = of(v)
		}
		if err != nil {
			h.answer(v, err)
		}
	})
}

// answer turns an error into a page.
func (h *handler) answer(v *visit, err error) {
	switch {
	case errors.Is(err, access.ErrRefused):
		h.fail(v.w, v.r, http.StatusUnauthorized, "error.401")
	case errors.Is(err, account.ErrNotFound):
		h.fail(v.w, v.r, http.StatusNotFound, "error.404")
	case errors.Is(err, errInput):
		h.fail(v.w, v.r, http.StatusBadRequest, "error.400")
	case gone(v.r):
	case errors.Is(err, errPage):
		h.Log.Error("a portal page could not be made", "path", v.r.URL.Path, "error", err.Error())
		h.fail(v.w, v.r, http.StatusInternalServerError, "error.500")
	default:
		h.Log.Warn("the account could not be read for the portal", "path", v.r.URL.Path, "error", err.Error())
		v.w.Header().Set("Retry-After", "5")
		h.fail(v.w, v.r, http.StatusServiceUnavailable, "error.503")
	}
}

// tokenOf is the token that a request carries: an API caller's bearer token,
// else the cookie.
func tokenOf(r *http.Request) string {
	if values := r.Header.Values("Authorization"); len(values) > 0 {
		scheme, token, _ := strings.Cut(values[0], " ")
		if len(values) > 1 || !strings.EqualFold(scheme, "Bearer") {
			return ""
		}
		return strings.TrimSpace(token)
	}
	c, err := r.Cookie(tokenCookie)
	if err != nil {
		return ""
	}
	return c.Value
}

// denied writes down who asked for what is not theirs, and is the answer.
func (v *visit) denied(kind, ref string) error {
	d := access.Denial{At: v.now.UTC(), Tenant: v.grant.Tenant, User: v.grant.User, JTI: v.grant.JTI, Kind: kind, Ref: ref, Path: v.r.URL.Path}
	if err := v.Audit.Denied(v.r.Context(), d); err != nil {
		return fmt.Errorf("audit: %w", err) // what cannot be written down is not answered
	}
	return account.ErrNotFound
}

func (v *visit) nothing() error { return account.ErrNotFound }

// A failure is what a page that cannot be shown says instead.
type failure struct {
	Title, How string
	Usage      bool // offer the way back
}

// fail answers with a status and a page that depends on nothing but the status,
// the language and whether a page or a document was asked for.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, status int, key string) {
	l := langOf(r)
	if isDocument(r) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{ // the client is gone
			"type": "about:blank", "title": http.StatusText(status), "status": status, "detail": english.word(key + ".how"),
		})
		return
	}
	f := failure{l.word(key), l.word(key + ".how"), status == http.StatusNotFound || status == http.StatusBadRequest}
	b, err := h.render(l, "failed", frame{Lang: l, Title: f.Title, Bare: true, Body: f})
	if err != nil {
		h.Log.Error("a portal page could not be made", "path", r.URL.Path, "error", err.Error())
		http.Error(w, http.StatusText(status), status)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Language", l.Code())
	w.WriteHeader(status)
	_, _ = w.Write(b) // the client is gone
}

// isDocument reports whether a request is for something other than a page.
func isDocument(r *http.Request) bool {
	p := r.URL.Path
	return strings.HasSuffix(p, ".csv") || strings.HasSuffix(p, "/csv") || strings.HasSuffix(p, "/json") ||
		strings.HasPrefix(r.Header.Get("Accept"), "application/json")
}

// errPage reports a page of ours that does not fit its template.
var errPage = errors.New("portal page")

// A frame is what surrounds every page.
type frame struct {
	Lang  lang
	Title string
	Tab   string // of the current page
	Who   string
	Foot  string
	Bare  bool // nobody is let in: no navigation
	Live  bool // something moves, and can be paused
	Self  string
	Body  any
}

// A tab is one page in the navigation.
type tab struct {
	Name    string
	Current bool
}

func newTab(f frame, name string) tab { return tab{name, f.Tab == name} }

// Other is where the page is in a language.
func (f frame) Other(code string) string {
	u, err := url.Parse(f.Self)
	if err != nil {
		return "?lang=" + code
	}
	q := u.Query()
	q.Set("lang", code)
	return "?" + q.Encode()
}

// show answers with a page.
func (v *visit) show(name, title, tab string, live bool, body any) error {
	who := v.who.Name
	if who == "" {
		who = v.grant.Tenant
	}
	f := frame{
		Lang: v.lang, Title: title, Tab: tab, Who: who, Live: live, Self: v.r.URL.RequestURI(), Body: body,
		Foot: v.lang.word("foot", v.who.Zone.String(), offset(v.now)),
	}
	b, err := v.render(v.lang, name, f)
	if err != nil {
		return err
	}
	return v.write(b)
}

// fragment answers with a part of a page.
func (v *visit) fragment(name string, body any) error {
	var b bytes.Buffer
	if err := v.pages[v.lang][name].ExecuteTemplate(&b, "live", body); err != nil {
		return fmt.Errorf("%w: %s: %w", errPage, name, err)
	}
	return v.write(b.Bytes())
}

func (v *visit) write(b []byte) error {
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.Header().Set("Content-Language", v.lang.Code())
	_, _ = v.w.Write(b) // the client is gone
	return nil
}

// render makes a page whole before any of it is sent.
func (h *handler) render(l lang, name string, f frame) ([]byte, error) {
	var b bytes.Buffer
	if err := h.pages[l][name].ExecuteTemplate(&b, "layout", f); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errPage, name, err)
	}
	return b.Bytes(), nil
}

// pageNames are the templates that are pages.
var pageNames = []string{"usage", "cuts", "wallet", "invoices", "invoice", "failed"}

// parse reads the pages of one language.
func (h *handler) parse(l lang) (map[string]*template.Template, error) {
	funcs := template.FuncMap{
		"t": l.word, "marked": l.marked, "asset": func(name string) string { return h.assets.urls[name] }, "tab": newTab,
	}
	out := map[string]*template.Template{}
	for _, name := range pageNames {
		t, err := template.New(name).Funcs(funcs).Option("missingkey=error").
			ParseFS(templateFiles, "templates/layout.html", "templates/parts.html", "templates/"+name+".html")
		if err != nil {
			return nil, fmt.Errorf("portal: %w", err)
		}
		out[name] = t
	}
	return out, nil
}
