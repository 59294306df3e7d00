package main

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"penstock.dev/services/internal/conf"
)

// minToken is the shortest operator's token, in characters: guessing must be hopeless.
const minToken = 16

// operators reads a list of operators' tokens. Its errors never repeat one.
func operators(list conf.Secret) ([]string, error) {
	var out []string
	for item := range strings.SplitSeq(list.Reveal(), ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		if len(item) < minToken || strings.ContainsFunc(item, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, fmt.Errorf("item %d is not at least %d printable characters", len(out)+1, minToken)
		}
		out = append(out, item)
	}
	if len(out) == 0 {
		return nil, errors.New("empty")
	}
	return out, nil
}

// base reports whether s is a URL of a host alone, and whether by https.
func base(s string) (secure, ok bool) {
	u, err := url.Parse(s)
	ok = err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && strings.Trim(u.Path, "/") == "" && u.RawQuery == "" && u.Fragment == ""
	return ok && u.Scheme == "https", ok
}
