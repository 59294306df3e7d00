package schemas_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.dev/schemas"
	"penstock.dev/schemas/internal/codec/codectest"
)

var update = flag.Bool("update", false, "publish what changed: archive the newest schemas, write their golden files, append to the list of checksums")

// sums lists the checksum of every version ever published, as sha256sum does.
const sums = "testdata/published.sha256"

func archive(topic string, version int) string {
	return filepath.Join("published", topic, strconv.Itoa(version)+".avsc")
}

func golden(topic string, version int, name string) string {
	return filepath.Join("testdata", topic, strconv.Itoa(version), name)
}

// versions returns the published versions of a topic as they are on disk, which
// after an update are newer than what was embedded.
func versions(t *testing.T, topic string) []string {
	t.Helper()
	var out []string
	for {
		text, err := os.ReadFile(archive(topic, len(out)+1))
		if err != nil {
			return out
		}
		out = append(out, string(text))
	}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// publish archives a schema that changed, if the house rules and every older
// version allow it.
func publish(t *testing.T, p topic) {
	t.Helper()
	text, err := os.ReadFile(p.name + ".avsc")
	if err != nil {
		t.Fatal(err)
	}
	old := versions(t, p.name)
	if len(old) == 0 || old[len(old)-1] != string(text) {
		if faults := change(old, string(text)); len(faults) > 0 {
			t.Fatalf("%s is not published: %s", p.name, strings.Join(faults, "; "))
		}
		write(t, archive(p.name, len(old)+1), text)
	}
	list, err := os.ReadFile(sums)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for i, v := range versions(t, p.name) {
		if !strings.Contains(string(list), archive(p.name, i+1)+"\n") {
			list = fmt.Appendf(list, "%s\n", sumLine(p.name, i+1, v))
		}
	}
	write(t, sums, list)
}

func sumLine(topic string, version int, text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:]) + "  " + archive(topic, version)
}

// TestPublished guarantees that what was published stays as it was: every
// version is kept, none has changed by a byte, and the schema at the top is the
// newest of them.
func TestPublished(t *testing.T) {
	var want []string
	for _, p := range topics(t) {
		if *update {
			publish(t, p)
		}
		published := versions(t, p.name)
		for i, text := range published {
			want = append(want, sumLine(p.name, i+1, text))
		}
		if len(published) == 0 || published[len(published)-1] != p.newest {
			t.Errorf("%s.avsc is not the newest published version: run go test . -update, then test again", p.name)
		}
		if !*update && !cmp.Equal(schemas.Published(p.name), published) {
			t.Errorf("Published(%s) is not what the folder holds", p.name)
		}
	}
	list, err := os.ReadFile(sums)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSpace(string(list)), "\n")
	for _, line := range got {
		if !contains(want, line) {
			t.Errorf("%s lists %q, and there is no such version: a published version changed or went away", sums, line)
		}
	}
	for _, line := range want {
		if !contains(got, line) {
			t.Errorf("%s does not list %q", sums, line)
		}
	}
	if schemas.Published("nobody.v1") != nil || schemas.Published("../published/rules.v1") != nil {
		t.Error("Published of what is no topic, want none")
	}
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// TestGoldenNewest guarantees that what is written today is, byte for byte, what
// the newest version's golden files hold, that twmb writes the same, and that
// the Avro JSON beside each file says the same.
func TestGoldenNewest(t *testing.T) {
	for _, p := range topics(t) {
		version := len(versions(t, p.name))
		for _, name := range p.names() {
			s := p.samples[name]
			js, err := codectest.JSON(p.newest, s.record)
			if err != nil {
				t.Fatal(err)
			}
			bin, text := golden(p.name, version, name+".bin"), golden(p.name, version, name+".json")
			if *update {
				write(t, bin, s.body)
				write(t, text, js)
			}
			if want, err := os.ReadFile(bin); err != nil || !bytes.Equal(want, s.body) {
				t.Errorf("%s differs from what is written today (%v):\n got %x\nwant %x", bin, err, s.body, want)
			}
			if want, err := os.ReadFile(text); err != nil || !bytes.Equal(want, js) {
				t.Errorf("%s differs from what is written today (%v): %s", text, err, cmp.Diff(string(want), string(js)))
			}
			other, err := codectest.Encode(p.newest, s.record)
			if err != nil || !bytes.Equal(other, s.body) {
				t.Errorf("%s %s: twmb writes %x (%v), want %x", p.name, name, other, err, s.body)
			}
			if back, err := codectest.FromJSON(p.newest, js); err != nil || !bytes.Equal(back, s.body) {
				t.Errorf("%s gives %x (%v), want %x", text, back, err, s.body)
			}
			if got, err := p.read(t.Context(), p.newest, s.key, s.body); err != nil || !cmp.Equal(got, s.record) {
				t.Errorf("%s %s was read back differently (%v): %s", p.name, name, err, cmp.Diff(s.record, got))
			}
		}
	}
}

// TestGoldenHistory guarantees that the newest reader reads every golden file of
// every version ever published, and finds nothing wrong with it.
func TestGoldenHistory(t *testing.T) {
	for _, p := range topics(t) {
		for i, writer := range versions(t, p.name) {
			files, err := filepath.Glob(golden(p.name, i+1, "*.bin"))
			if err != nil || len(files) == 0 {
				t.Errorf("%s version %d has no golden files (%v)", p.name, i+1, err)
			}
			for _, file := range files {
				body, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				record, err := generic(writer, writer, body)
				if err != nil {
					t.Fatalf("%s: %v", file, err)
				}
				if _, err := p.read(t.Context(), writer, p.keyOf(record), body); err != nil {
					t.Errorf("%s: %v", file, err)
				}
			}
		}
	}
}

// TestNewestForOldest guarantees the other direction: a reader of any published
// version reads what is written today.
func TestNewestForOldest(t *testing.T) {
	for _, p := range topics(t) {
		for i, reader := range versions(t, p.name) {
			for _, name := range p.names() {
				if _, err := generic(reader, p.newest, p.samples[name].body); err != nil {
					t.Errorf("a reader of %s version %d cannot read %s: %v", p.name, i+1, name, err)
				}
			}
		}
	}
}
