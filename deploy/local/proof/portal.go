package proof

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"penstock.dev/deploy/local/estate"
)

// booksWithin bounds the wait until billing has counted what was decided.
const booksWithin = time.Minute

// portalTokens is what a proof needs to look at books as a tenant does.
const portalTokens = "billing's POST /v1/portal-tokens"

// biller says whether there are books, and tokens to look at them.
func biller(ctx context.Context, s *stage) string {
	if s.Env["BILLING_URL"] == "" || s.Env["BILLING_TOKEN"] == "" {
		return "billing"
	}
	got, err := s.bill(ctx, http.MethodPost, "/v1/portal-tokens", "", map[string]any{})
	if err == nil && got.status == http.StatusNotFound {
		return portalTokens
	}
	return "" // whatever else is wrong, the proof will find
}

// A page of billing's API as somebody sees it.
type seen struct {
	status int
	body   []byte
}

// bill asks billing, with a bearer token unless that is empty.
func (s *stage) bill(ctx context.Context, method, path, token string, body any) (seen, error) {
	var content io.Reader = http.NoBody
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return seen{}, err
		}
		content = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.Env["BILLING_URL"]+path, content)
	if err != nil {
		return seen{}, err
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return seen{}, err
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	return seen{resp.StatusCode, text}, errors.Join(err, resp.Body.Close())
}

// A pass is a portal token with its id.
type pass struct {
	Token string `json:"token"`
	JTI   string `json:"jti"`
}

// portalToken has billing sign a token for a user of a tenant.
func (s *stage) portalToken(ctx context.Context, tenant, user string) (pass, error) {
	got, err := s.bill(ctx, http.MethodPost, "/v1/portal-tokens", s.Env["BILLING_TOKEN"],
		map[string]any{"tenant": tenant, "user": user, "ttl_seconds": 600})
	if err == nil && got.status != http.StatusCreated {
		err = fmt.Errorf("POST /v1/portal-tokens: %d: %s", got.status, bytes.TrimSpace(got.body))
	}
	var p pass
	if err != nil {
		return p, err
	}
	return p, json.Unmarshal(got.body, &p)
}

// forgeries are tokens that somebody has made who has a genuine one and wants to be
// another tenant, by what was done.
func forgeries(genuine, own, other string) (map[string]string, error) {
	parts := strings.Split(genuine, ".")
	if len(parts) != 3 {
		return nil, errors.New("the portal's token is not of three parts")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil, fmt.Errorf("the portal's token: %w", err)
	}
	changed := bytes.ReplaceAll(payload, []byte(`"`+own+`"`), []byte(`"`+other+`"`))
	if bytes.Equal(changed, payload) {
		return nil, errors.New("the portal's token does not name its tenant")
	}
	encode := base64.RawURLEncoding.EncodeToString
	body := parts[0] + "." + encode(changed)
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	none := encode([]byte(`{"alg":"none","typ":"JWT"}`)) + "." + encode(changed) + "."
	return map[string]string{
		"another tenant under the old signature":            body + "." + parts[2],
		"another tenant, signed with a key of the forger's": body + "." + encode(ed25519.Sign(key, []byte(body))),
		"another tenant, unsigned (alg none)":               none,
		"no token at all":                                   "",
	}, nil
}

// forgedPortal looks at billing as one tenant and tries to see another's numbers.
func forgedPortal(ctx context.Context, s *stage) (Finding, error) {
	t := &trial{s: s, mallory: s.named("mallory")}
	if err := t.prepare(ctx); err != nil {
		return Finding{}, err
	}
	for _, step := range []func(context.Context) error{t.parameters, t.foreign, t.forge, t.revoke} {
		if err := step(ctx); err != nil {
			return Finding{}, err
		}
	}
	return t.judge(), nil
}

// A trial is what a tenant tries, and gets.
type trial struct {
	s               *stage
	mallory, victim string
	own, theirs     pass
	secret          string // an id that only the victim's answers have
	invoice         string // number of one of the victim's

	asked, leaked   int // questions with the victim as a parameter; answers that differ or have the secret
	foreignStatus   int // of the victim's invoice
	missingStatus   int // of one that nobody has
	same            bool
	forged, refused int
	revoked         int // status of a revoked token
}

// prepare makes two tenants with wallets, and waits until the victim has an invoice
// with a number: it is billed by the hour, and one of its hours is about to end.
func (t *trial) prepare(ctx context.Context) error {
	s, plan := t.s, t.s.named("by-the-hour")
	err := s.enforce(ctx, append(s.prepaid("mallory", "Mallory"), object{"plans", plan, estate.Object{
		"name": "By the hour", "fee": estate.Object{"amount": 500, "currency": "USD", "period": "hour"},
	}})...)
	if err != nil {
		return err
	}
	// A machine that is too slow for an hour's end gets a later one.
	for i, lead := range []time.Duration{3 * time.Second, 6 * time.Second, 12 * time.Second} {
		ends := time.Now().Add(lead).Truncate(time.Second)
		if err := t.makeVictim(ctx, fmt.Sprintf("victim-%d", i+1), plan, ends.Add(-time.Hour)); err != nil {
			return err
		}
		if time.Now().Before(ends) {
			break
		}
	}
	if t.own, err = s.portalToken(ctx, t.mallory, "mallory"); err != nil {
		return err
	}
	if t.theirs, err = s.portalToken(ctx, t.victim, "vera"); err != nil {
		return err
	}
	return s.await(ctx, booksWithin, func(ctx context.Context) error {
		wallet, err := s.bill(ctx, http.MethodGet, "/v1/wallet", t.theirs.Token, nil)
		if err != nil {
			return err
		}
		if wallet.status != http.StatusOK || !bytes.Contains(wallet.body, []byte(t.secret)) {
			return fmt.Errorf("the victim's wallet: %d: %.200s", wallet.status, wallet.body)
		}
		t.invoice, err = s.invoiceIn(ctx, t.theirs.Token, "final")
		return err
	})
}

// makeVictim makes a tenant whose hours begin at an anchor, with one call and a top-up
// by whose id its answers are known.
func (t *trial) makeVictim(ctx context.Context, id, plan string, anchor time.Time) error {
	t.victim = t.s.named(id)
	objects := t.s.prepaid(id, "Victim")
	maps.Copy(objects[0].body, estate.Object{"plan": plan, "currency": "USD", "zone": "UTC", "anchor": anchor.UTC().Format(time.RFC3339)})
	if err := t.s.enforce(ctx, objects...); err != nil {
		return err
	}
	made, err := t.s.admin.TopUp(ctx, t.victim, walletMeter, "order-1", 777)
	if err != nil {
		return err
	}
	t.secret = fmt.Sprint(made["topup_id"])
	if err := t.s.awaitBalance(ctx, t.victim, 777); err != nil {
		return err
	}
	_, err = t.s.Deciders()[0].Decide(ctx, estate.Object{"tenant": t.victim})
	return err
}

// invoiceIn is the id of a tenant's newest invoice that is in a state.
func (s *stage) invoiceIn(ctx context.Context, token, state string) (string, error) {
	got, err := s.bill(ctx, http.MethodGet, "/v1/invoices", token, nil)
	if err != nil {
		return "", err
	}
	var list struct {
		Items []struct{ ID, State string } `json:"items"`
	}
	if err := json.Unmarshal(got.body, &list); err != nil || got.status != http.StatusOK {
		return "", fmt.Errorf("GET /v1/invoices: %d: %.200s", got.status, got.body)
	}
	for _, i := range list.Items {
		if i.State == state {
			return i.ID, nil
		}
	}
	return "", fmt.Errorf("none of %s is %s", count(len(list.Items), "invoice"), state)
}

// parameters names the victim wherever a request has room for it.
func (t *trial) parameters(ctx context.Context) error {
	v := url.QueryEscape(t.victim)
	for _, path := range []string{"/v1/wallet", "/v1/usage", "/v1/invoices"} {
		plain, err := t.s.bill(ctx, http.MethodGet, path, t.own.Token, nil)
		if err != nil {
			return err
		}
		for _, with := range []string{"?tenant=" + v, "?customer=" + v, "?tenant_id=" + v + "&tenant=" + v} {
			got, err := t.s.bill(ctx, http.MethodGet, path+with, t.own.Token, nil)
			if err != nil {
				return err
			}
			t.asked++
			if plain.status != http.StatusOK || got.status != http.StatusOK ||
				bytes.Contains(got.body, []byte(t.secret)) || bytes.Contains(got.body, []byte(t.victim)) {
				t.leaked++
			}
		}
	}
	return nil
}

// foreign asks for the victim's invoice and for one that nobody has.
func (t *trial) foreign(ctx context.Context) error {
	theirs, err1 := t.s.bill(ctx, http.MethodGet, "/v1/invoices/"+url.PathEscape(t.invoice), t.own.Token, nil)
	nobodys, err2 := t.s.bill(ctx, http.MethodGet, "/v1/invoices/nobody-has-this", t.own.Token, nil)
	t.foreignStatus, t.missingStatus, t.same = theirs.status, nobodys.status, bytes.Equal(theirs.body, nobodys.body)
	return errors.Join(err1, err2)
}

// forge shows forged tokens for the victim's own pages.
func (t *trial) forge(ctx context.Context) error {
	tokens, err := forgeries(t.own.Token, t.mallory, t.victim)
	if err != nil {
		return err
	}
	for _, token := range tokens {
		got, err := t.s.bill(ctx, http.MethodGet, "/v1/wallet", token, nil)
		if err != nil {
			return err
		}
		t.forged++
		if got.status == http.StatusUnauthorized && !bytes.Contains(got.body, []byte(t.secret)) {
			t.refused++
		}
	}
	return nil
}

// revoke ends the genuine token and shows it again.
func (t *trial) revoke(ctx context.Context) error {
	gone, err := t.s.bill(ctx, http.MethodDelete, "/v1/portal-tokens/"+url.PathEscape(t.own.JTI), t.s.Env["BILLING_TOKEN"], nil)
	if err != nil {
		return err
	}
	if gone.status != http.StatusNoContent {
		return fmt.Errorf("DELETE /v1/portal-tokens: %d: %.200s", gone.status, gone.body)
	}
	after, err := t.s.bill(ctx, http.MethodGet, "/v1/wallet", t.own.Token, nil)
	t.revoked = after.status
	return err
}

func (t *trial) judge() Finding {
	alike := "the same answer"
	if !t.same {
		alike = "different answers"
	}
	return Finding{
		Done: fmt.Sprintf("as one tenant: another's id as tenant and customer in %d questions; its invoice %s, and one that nobody has; %d forged tokens (payload changed, signed with another key, unsigned, none); the own token, revoked",
			t.asked, t.invoice, t.forged),
		Expected: fmt.Sprintf("0 of %d answers have anything of the other's; 404 and 404, the same answer; %d of %d are 401; then 401", t.asked, t.forged, t.forged),
		Measured: fmt.Sprintf("%d of %d answers have anything of the other's; %d and %d, %s; %d of %d are 401; then %d",
			t.leaked, t.asked, t.foreignStatus, t.missingStatus, alike, t.refused, t.forged, t.revoked),
		Badges: []Badge{
			{"leaked", fmt.Sprintf("%d of %d", t.leaked, t.asked), Good},
			{"foreign invoice", fmt.Sprint(t.foreignStatus), Good},
			{"forged tokens refused", fmt.Sprintf("%d of %d", t.refused, t.forged), Good},
			{"revoked", fmt.Sprint(t.revoked), Good},
		},
		Held: t.asked > 0 && t.leaked == 0 && t.foreignStatus == http.StatusNotFound && t.missingStatus == http.StatusNotFound && t.same &&
			t.forged > 0 && t.refused == t.forged && t.revoked == http.StatusUnauthorized,
	}
}
