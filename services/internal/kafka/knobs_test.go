package kafka_test

import (
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock.dev/services/internal/conf"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
)

// knobs parses args as a service would.
func knobs(t *testing.T, part []kafka.Part, args ...string) (*kafka.Knobs, *conf.Set, error) {
	t.Helper()
	var k kafka.Knobs
	s := conf.New("service", func(string) string { return "" })
	k.Register(s, part...)
	if err := s.Parse(args); err != nil {
		t.Fatal(err)
	}
	return &k, s, k.Validate()
}

// TestKnobs guarantees that a service is offered the knobs of what it uses and
// no others, that the defaults are an estate on this machine, and that Config
// carries everything over.
func TestKnobs(t *testing.T) {
	t.Parallel()
	files := []string{"kafka-ca-file", "kafka-cert-file", "kafka-key-file"}
	brokers := []string{"kafka-brokers", "kafka-tls", "kafka-sasl", "kafka-user", "kafka-password"}
	registry := []string{"schema-registry", "schema-registry-user", "schema-registry-password"}
	for _, tt := range []struct {
		only []kafka.Part
		want []string
	}{
		{nil, slices.Concat(brokers, registry, files)},
		{[]kafka.Part{kafka.OnlyBrokers}, slices.Concat(brokers, files)},
		{[]kafka.Part{kafka.OnlyRegistry}, slices.Concat(registry, files)},
	} {
		_, s, err := knobs(t, tt.only)
		if err != nil {
			t.Errorf("the defaults of %v are refused: %v", tt.only, err)
		}
		var got []string
		for _, k := range s.Knobs() {
			got = append(got, k.Flag)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("knobs of %v are %v, want %v", tt.only, got, tt.want)
		}
	}

	ca := kafkatest.NewAuthority(t)
	own := ca.Issue("relay", time.Now().Add(time.Hour))
	k, _, err := knobs(t, nil,
		"-kafka-brokers", "b1:9093,b2:9093", "-kafka-tls", "on", "-kafka-sasl", "scram-sha-512", "-kafka-user", "relay", "-kafka-password", "pw",
		"-schema-registry", "https://r1,https://r2", "-schema-registry-user", "relay", "-schema-registry-password", "pw2",
		"-kafka-ca-file", ca.File, "-kafka-cert-file", own.Cert, "-kafka-key-file", own.Key)
	if err != nil {
		t.Fatal(err)
	}
	c := k.Config("relay-1")
	files3 := kafka.TLS{CAFile: ca.File, CertFile: own.Cert, KeyFile: own.Key}
	if !slices.Equal(c.Brokers, []string{"b1:9093", "b2:9093"}) || c.ClientID != "relay-1" || c.TLS == nil || *c.TLS != files3 ||
		c.SASL.Mechanism != kafka.SASLScramSHA512 || c.SASL.User != "relay" || c.SASL.Password.Reveal() != "pw" ||
		c.SchemaRegistry != "https://r1,https://r2" || c.RegistryUser != "relay" || c.RegistryPassword.Reveal() != "pw2" || c.RegistryTLS != files3 {
		t.Errorf("Config = %+v", c)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("Config.Validate = %v, want nil", err)
	}
}

// TestKnobsRefuse guarantees that every fault is found before anything is
// dialled, that each names its flag and environment variable, all at once, that
// what would be ignored is refused, and that no password is shown.
func TestKnobsRefuse(t *testing.T) {
	t.Parallel()
	ca := kafkatest.NewAuthority(t)
	own, old := ca.Issue("relay", time.Now().Add(time.Hour)), ca.Issue("relay", time.Now().Add(-time.Hour))
	tls := []string{"-kafka-tls", "on"}
	for _, tt := range []struct {
		name string
		args []string
		want []string
	}{
		{"no brokers, no registry", []string{"-kafka-brokers", "", "-schema-registry", ""}, []string{"kafka-brokers", "schema-registry"}},
		{"brokers without a port", []string{"-kafka-brokers", "b1,b2:x"}, []string{"kafka-brokers"}},
		{"a registry that is no URL", []string{"-schema-registry", "user:secret@r1:8081"}, []string{"schema-registry"}},
		{"TLS neither on nor off", []string{"-kafka-tls", "yes"}, []string{"kafka-tls"}},
		{"files that nothing uses", []string{"-kafka-ca-file", ca.File, "-kafka-cert-file", own.Cert, "-kafka-key-file", own.Key}, []string{"kafka-ca-file", "kafka-cert-file", "kafka-key-file"}},
		{"a file that is missing", append(tls, "-kafka-ca-file", "/nowhere/ca.pem"), []string{"kafka-ca-file"}},
		{"a file without a certificate", append(tls, "-kafka-ca-file", own.Key), []string{"kafka-ca-file"}},
		{"a certificate without its key", append(tls, "-kafka-cert-file", own.Cert), []string{"kafka-key-file"}},
		{"a key without its certificate", append(tls, "-kafka-key-file", own.Key), []string{"kafka-cert-file"}},
		{"another's key", append(tls, "-kafka-cert-file", own.Cert, "-kafka-key-file", old.Key), []string{"kafka-cert-file", "kafka-key-file"}},
		{"an expired certificate", append(tls, "-kafka-cert-file", old.Cert, "-kafka-key-file", old.Key), []string{"kafka-cert-file"}},
		{"an unknown mechanism", []string{"-kafka-sasl", "GSSAPI"}, []string{"kafka-sasl"}},
		{"a mechanism without a user", []string{"-kafka-sasl", "PLAIN"}, []string{"kafka-user", "kafka-password"}},
		{"a user without a mechanism", []string{"-kafka-user", "relay", "-kafka-password", "secret"}, []string{"kafka-user", "kafka-password"}},
		{"a registry user without a password", []string{"-schema-registry-user", "relay"}, []string{"schema-registry-password"}},
		{"a registry password without a user", []string{"-schema-registry-password", "secret"}, []string{"schema-registry-password"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := knobs(t, nil, tt.args...)
			if err == nil {
				t.Fatal("accepted, want a refusal")
			}
			for _, knob := range tt.want {
				if want := "-" + knob + " (" + conf.Env(knob) + ")"; !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want it to name %s", err, want)
				}
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("%v shows a password", err)
			}
		})
	}
}

// TestRegistrySecurity guarantees that the registry is given the credentials and
// the client's certificate, over TLS to whom the authority signed for only, and
// that a refusal names the knob.
func TestRegistrySecurity(t *testing.T) {
	t.Parallel()
	ca := kafkatest.NewAuthority(t)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, p, _ := r.BasicAuth()
		if u != user || p != password || len(r.TLS.PeerCertificates) == 0 {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error_code":401,"message":"Unauthorized"}`))
			return
		}
		_, _ = w.Write([]byte(`{"id":7}`))
	}))
	s.TLS, s.Config.ErrorLog = ca.ServerTLS(), log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	own := ca.Issue("relay", time.Now().Add(time.Hour))
	good := kafka.RegistryConfig{
		URLs: []string{s.URL}, User: user, Password: conf.NewSecret(password),
		TLS: kafka.TLS{CAFile: ca.File, CertFile: own.Cert, KeyFile: own.Key},
	}
	for _, tt := range []struct {
		name   string
		change func(*kafka.RegistryConfig)
		want   string
	}{
		{"everything", func(*kafka.RegistryConfig) {}, ""},
		{"a wrong password", func(c *kafka.RegistryConfig) { c.Password = conf.NewSecret("wrong") }, "-schema-registry-password (PENSTOCK_SCHEMA_REGISTRY_PASSWORD)"},
		{"nobody", func(c *kafka.RegistryConfig) { c.User = "" }, "-schema-registry-user (PENSTOCK_SCHEMA_REGISTRY_USER)"},
		{"an unknown authority", func(c *kafka.RegistryConfig) { c.TLS = kafka.TLS{} }, "-kafka-ca-file (PENSTOCK_KAFKA_CA_FILE)"},
		{"another authority", func(c *kafka.RegistryConfig) { c.TLS.CAFile = kafkatest.NewAuthority(t).File }, "-kafka-ca-file (PENSTOCK_KAFKA_CA_FILE)"},
	} {
		c := good
		tt.change(&c)
		id, err := kafka.OpenRegistry(c).Register(t.Context(), "s-value", schemaV1)
		switch {
		case tt.want == "" && (err != nil || id != 7):
			t.Errorf("%s: %d, %v, want 7", tt.name, id, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, want it to name %s", tt.name, err, tt.want)
		case errors.Is(err, kafka.ErrRegistryRefused), errors.Is(err, kafka.ErrRegistryNotFound):
			t.Errorf("%s: %v is a verdict on the schema, want none", tt.name, err)
		}
	}
}
