package receipt_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock.dev/services/gateway/receipt"
)

var update = flag.Bool("update", false, "write the golden receipt")

const (
	old     = "2026-10:secret-of-october"
	current = "2026-11:secret-of-november"
)

func keys(t testing.TB, text string) receipt.Keys {
	t.Helper()
	k, err := receipt.ParseKeys(text)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestRotation guarantees that the first key signs and all verify, so that a
// new key can be made known everywhere before it signs, and an old one outlives
// its receipts.
func TestRotation(t *testing.T) {
	t.Parallel()
	body := []byte("what was charged")
	for _, tt := range []struct {
		name, signs, opens string
		ok                 bool
	}{
		{"the same keys", current, current, true},
		{"a key that is known and does not sign yet", current, old + "," + current, true},
		{"a key that signs no more", old, current + ", " + old, true},
		{"a key that was taken away", old, current, false},
		{"a key of the same name with another secret", current, "2026-11:secret-of-somebody", false},
		{"no keys", current, "", false},
	} {
		got, err := keys(t, tt.opens).Open(keys(t, tt.signs).Seal(body))
		if tt.ok && (err != nil || !bytes.Equal(got, body)) {
			t.Errorf("%s: %q %v, want the body", tt.name, got, err)
		}
		if !tt.ok && (!errors.Is(err, receipt.ErrInvalid) || got != nil) {
			t.Errorf("%s: %q %v, want ErrInvalid", tt.name, got, err)
		}
	}
	if sealed := keys(t, " ").Seal(body); sealed != "" || !keys(t, "").None() {
		t.Errorf("without keys: %q", sealed)
	}
}

// TestAltered guarantees that no bit of a receipt can change, and nothing be
// added or taken away, in whatever spelling.
func TestAltered(t *testing.T) {
	t.Parallel()
	k := keys(t, current)
	sealed := k.Seal([]byte("what was charged"))
	b, err := base64.RawURLEncoding.DecodeString(sealed)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b {
		for bit := range 8 {
			c := bytes.Clone(b)
			c[i] ^= 1 << bit
			if _, err := k.Open(base64.RawURLEncoding.EncodeToString(c)); !errors.Is(err, receipt.ErrInvalid) {
				t.Errorf("bit %d of byte %d was changed, and Open = %v", bit, i, err)
			}
		}
	}
	for _, s := range []string{
		"", "=", "AA", sealed + "A", sealed[1:], sealed[:len(sealed)-1], sealed + "\n", " " + sealed, sealed + "=", sealed[:8] + "\r\n" + sealed[8:],
		strings.Repeat("A", receipt.MaxSize+4), base64.RawURLEncoding.EncodeToString([]byte{1, 255, 'x'}),
		base64.RawURLEncoding.EncodeToString(append([]byte{1, 200}, make([]byte, 40)...)),
	} {
		if _, err := k.Open(s); !errors.Is(err, receipt.ErrInvalid) {
			t.Errorf("Open(%.40q) = %v, want ErrInvalid", s, err)
		}
	}
}

// TestParseKeysRefuses guarantees that every fault of the keys is named, and no
// secret told.
func TestParseKeysRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"hush-hush-hush-hush":         "number 1 is not id:secret",
		"a:hush":                      "the secret of a has 4 bytes, want at least 16",
		":hush-hush-hush-hush":        "the id of number 1",
		"a b:hush-hush-hush-hush":     "the id of number 1",
		current + "," + current:       "2026-11 is there twice",
		current + ",":                 "number 2 is not id:secret",
		current + ",b:hush":           "the secret of b",
		strings.Repeat("x", 33) + ":": "the id of number 1",
	} {
		_, err := receipt.ParseKeys(text)
		if !errors.Is(err, receipt.ErrKeys) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hush") || strings.Contains(err.Error(), "november") {
			t.Errorf("ParseKeys(%q) = %v, want %q", text, err, want)
		}
	}
	var many []string
	for i := range receipt.MaxKeys + 1 {
		many = append(many, strings.Repeat("k", i+1)+":a-secret-of-some-length")
	}
	if _, err := receipt.ParseKeys(strings.Join(many, ",")); !errors.Is(err, receipt.ErrKeys) {
		t.Errorf("%d keys: %v", len(many), err)
	}
	if k, err := receipt.ParseKeys(strings.Join(many[1:], ",")); err != nil || k.None() {
		t.Errorf("%d keys: %v", len(many)-1, err)
	}
	if k, err := receipt.ParseKeys("a:with:colons:inside:it"); err != nil || k.None() {
		t.Errorf("a secret with colons: %v", err)
	}
}

// TestGolden guarantees that receipts which are out there stay good: what was
// sealed by an earlier version opens, and today's is the same.
func TestGolden(t *testing.T) {
	t.Parallel()
	k := keys(t, current)
	body := []byte{0, 1, 2, 250, 'p', 'e', 'n'}
	path := filepath.Join("testdata", "v1.txt")
	if *update {
		if err := os.WriteFile(path, []byte(k.Seal(body)+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.TrimSpace(string(golden))
	if got := k.Seal(body); got != want {
		t.Errorf("Seal = %s, want %s", got, want)
	}
	if got, err := k.Open(want); err != nil || !bytes.Equal(got, body) {
		t.Errorf("Open = %q %v", got, err)
	}
}

// FuzzOpen guarantees that whatever Open takes was sealed with one of the keys:
// sealing its body again is the same text.
func FuzzOpen(f *testing.F) {
	signer := keys(f, current)
	both := keys(f, old+","+current)
	f.Add(signer.Seal(nil))
	f.Add(signer.Seal([]byte("what was charged")))
	f.Add(keys(f, old).Seal([]byte("what was charged")))
	f.Add("AQ")
	f.Fuzz(func(t *testing.T, text string) {
		body, err := both.Open(text)
		if err != nil {
			if !errors.Is(err, receipt.ErrInvalid) || body != nil {
				t.Fatalf("Open(%q) = %q, %v", text, body, err)
			}
			return
		}
		if text != signer.Seal(body) && text != both.Seal(body) {
			t.Fatalf("Open(%q) took what nobody sealed", text)
		}
	})
}

// BenchmarkSeal measures what a receipt adds to an answer.
func BenchmarkSeal(b *testing.B) {
	k := keys(b, current)
	body := make([]byte, 300)
	b.ReportAllocs()
	for b.Loop() {
		_ = k.Seal(body)
	}
}
