// Package receipt signs what a decision charged, so that whoever holds the
// answer can have it corrected, at any gateway, without anything being stored
// (docs/adr/0056).
//
// A receipt is readable by everybody and forgeable by nobody: base64url, in its
// one spelling, of
//
//	1 byte   format, 1
//	1 byte   length of the key's id
//	n bytes  id of the key
//	m bytes  what was sealed
//	32 bytes HMAC-SHA256 of all of the above
package receipt

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Bounds of keys.
const (
	MinSecret = 16 // bytes: 128 random bits in base64 have 22
	MaxID     = 32 // bytes
	MaxKeys   = 16
)

// MaxSize bounds a receipt that Open looks at, in characters: more than any
// body of a correction holds.
const MaxSize = 64 << 10

// format is the first byte.
const format = 1

var (
	// ErrKeys reports keys that cannot work. The text shows no secret.
	ErrKeys = errors.New("receipt keys")
	// ErrInvalid reports what is no receipt of ours: unreadable, altered, or
	// signed by a key that is not known. It does not say which.
	ErrInvalid = errors.New("no receipt of these keys")
)

// encoding refuses what two spellings could mean the same.
var encoding = base64.RawURLEncoding.Strict()

// Keys sign and verify. The zero Keys do neither. They are safe for concurrent
// use.
type Keys struct {
	list []key
}

type key struct {
	id     string
	secret []byte
}

// ParseKeys reads keys from "id:secret,id2:secret2", no text for none. The
// first signs, all verify. An id is 1 to MaxID of A-Z a-z 0-9 . _ -; a secret
// has MinSecret bytes or more and no comma. Spaces around a key do not count.
// The error wraps ErrKeys and names every fault.
func ParseKeys(text string) (Keys, error) {
	var k Keys
	if strings.TrimSpace(text) == "" {
		return k, nil
	}
	var faults []error
	for i, one := range strings.Split(text, ",") {
		id, secret, ok := strings.Cut(strings.TrimSpace(one), ":")
		switch {
		case !ok:
			faults = append(faults, fmt.Errorf("%w: number %d is not id:secret", ErrKeys, i+1))
		case !isID(id):
			faults = append(faults, fmt.Errorf("%w: the id of number %d is not 1-%d of A-Z a-z 0-9 . _ -", ErrKeys, i+1, MaxID))
		case len(secret) < MinSecret:
			faults = append(faults, fmt.Errorf("%w: the secret of %s has %d bytes, want at least %d", ErrKeys, id, len(secret), MinSecret))
		case slices.ContainsFunc(k.list, func(o key) bool { return o.id == id }):
			faults = append(faults, fmt.Errorf("%w: %s is there twice", ErrKeys, id))
		default:
			k.list = append(k.list, key{id, []byte(secret)})
		}
	}
	if len(k.list) > MaxKeys {
		faults = append(faults, fmt.Errorf("%w: %d of them, want at most %d", ErrKeys, len(k.list), MaxKeys))
	}
	return k, errors.Join(faults...)
}

func isID(s string) bool {
	return s != "" && len(s) <= MaxID &&
		strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == ""
}

// None reports whether there are no keys.
func (k Keys) None() bool { return len(k.list) == 0 }

// Seal returns the receipt for a body, signed with the first key. Without keys
// there is none.
func (k Keys) Seal(body []byte) string {
	if k.None() {
		return ""
	}
	signer := &k.list[0]
	b := make([]byte, 0, 2+len(signer.id)+len(body)+sha256.Size)
	b = append(b, format, byte(len(signer.id)))
	b = append(append(b, signer.id...), body...)
	return encoding.EncodeToString(signer.sign(b, b))
}

// Open returns the body of a receipt that one of the keys has signed. Where the
// signatures differ takes no time that tells anything about the right one.
func (k Keys) Open(text string) ([]byte, error) {
	if len(text) > MaxSize || strings.ContainsAny(text, "\r\n") { // which base64 skips
		return nil, ErrInvalid
	}
	b, err := encoding.DecodeString(text)
	if err != nil || len(b) < 2+sha256.Size || b[0] != format || len(b) < 2+int(b[1])+sha256.Size {
		return nil, ErrInvalid
	}
	id, signed := string(b[2:2+b[1]]), len(b)-sha256.Size
	for i := range k.list {
		if k.list[i].id == id && hmac.Equal(k.list[i].sign(nil, b[:signed]), b[signed:]) {
			return b[2+len(id) : signed : signed], nil
		}
	}
	return nil, ErrInvalid
}

// sign appends the signature of a message to dst.
func (k *key) sign(dst, message []byte) []byte {
	mac := hmac.New(sha256.New, k.secret)
	mac.Write(message)
	return mac.Sum(dst)
}
