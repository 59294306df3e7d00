package access

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"regexp"
	"strings"
)

// A Key signs tokens and verifies them.
type Key struct {
	ID      string // e.g. "2026-07"; 1 to 32 of A-Z a-z 0-9 . _ -
	private ed25519.PrivateKey
}

var keyID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,32}$`)

// NewKey returns the key that grows from a seed of 32 bytes.
func NewKey(id string, seed []byte) (Key, error) {
	if !keyID.MatchString(id) {
		return Key{}, fmt.Errorf("key id %q is not 1 to 32 of A-Z a-z 0-9 . _ -", id)
	}
	if len(seed) != ed25519.SeedSize {
		return Key{}, fmt.Errorf("key %s has %d bytes, want %d", id, len(seed), ed25519.SeedSize)
	}
	return Key{ID: id, private: ed25519.NewKeyFromSeed(seed)}, nil
}

// ParseKeys reads "id:seed,id:seed": the seed is 32 bytes in base64, with or
// without padding, in either alphabet. The first key signs, all verify. Errors
// never show a seed.
func ParseKeys(text string) ([]Key, error) {
	var keys []Key
	seen := map[string]bool{}
	for i, part := range strings.Split(text, ",") {
		id, secret, ok := strings.Cut(strings.TrimSpace(part), ":")
		if !ok {
			return nil, fmt.Errorf("key %d is not of the form id:seed", i+1)
		}
		clean := strings.NewReplacer("+", "-", "/", "_", "=", "").Replace(secret)
		seed, err := base64.RawURLEncoding.DecodeString(clean)
		if err != nil {
			return nil, fmt.Errorf("the seed of key %d is not base64", i+1)
		}
		k, err := NewKey(id, seed)
		if err != nil {
			return nil, err
		}
		if seen[id] {
			return nil, fmt.Errorf("key id %s is given twice", id)
		}
		seen[id] = true
		keys = append(keys, k)
	}
	return keys, nil
}

// Public is the key that anyone may have.
func (k Key) Public() ed25519.PublicKey {
	pub, _ := k.private.Public().(ed25519.PublicKey) // always one
	return pub
}

func (k Key) sign(text string) []byte { return ed25519.Sign(k.private, []byte(text)) }

func (k Key) verify(text string, signature []byte) bool {
	return len(signature) == ed25519.SignatureSize && ed25519.Verify(k.Public(), []byte(text), signature)
}
