package kafka

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"penstock.dev/services/internal/conf"
)

// A knob is the name of a flag. It prints as the operator knows it: with its
// environment variable.
type knob string

// String returns e.g. "-kafka-user (PENSTOCK_KAFKA_USER)".
func (k knob) String() string { return fmt.Sprintf("-%s (%s)", string(k), conf.Env(string(k))) }

// The knobs of Knobs.
const (
	knobBrokers          knob = "kafka-brokers"
	knobTLS              knob = "kafka-tls"
	knobCAFile           knob = "kafka-ca-file"
	knobCertFile         knob = "kafka-cert-file"
	knobKeyFile          knob = "kafka-key-file"
	knobSASL             knob = "kafka-sasl"
	knobUser             knob = "kafka-user"
	knobPassword         knob = "kafka-password"
	knobRegistry         knob = "schema-registry"
	knobRegistryUser     knob = "schema-registry-user"
	knobRegistryPassword knob = "schema-registry-password"
)

// A Part is what a service has to do with. The zero Part is both.
type Part string

// Parts of Kafka.
const (
	OnlyBrokers  Part = "brokers"
	OnlyRegistry Part = "registry"
)

// Knobs say where Kafka and its schema registry are and how to enter: names,
// defaults and checks are the same in every service.
type Knobs struct {
	Brokers  []string
	TLS      string // off or on, for the brokers; a registry says it by https
	CAFile   string
	CertFile string
	KeyFile  string
	SASL     string
	User     string
	Password conf.Secret

	Registry         []string
	RegistryUser     string
	RegistryPassword conf.Secret

	brokers, registry bool // what the service has to do with
}

// Register declares the knobs in s, those of a part only if one is named.
func (k *Knobs) Register(s *conf.Set, only ...Part) {
	k.brokers = !slices.Contains(only, OnlyRegistry)
	k.registry = !slices.Contains(only, OnlyBrokers)
	if k.brokers {
		s.Strings(&k.Brokers, string(knobBrokers), "127.0.0.1:9092", "Kafka, host:port list")
		s.String(&k.TLS, string(knobTLS), "off", "TLS to Kafka, off or on")
		s.String(&k.SASL, string(knobSASL), "", "how to log in to Kafka, PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; empty: not at all")
		s.String(&k.User, string(knobUser), "", "user at Kafka")
		s.Secret(&k.Password, string(knobPassword), "password of that user")
	}
	if k.registry {
		s.Strings(&k.Registry, string(knobRegistry), "http://127.0.0.1:8081", "schema registry, URL list, tried in order; https:// for TLS")
		s.String(&k.RegistryUser, string(knobRegistryUser), "", "user at the schema registry; empty: none")
		s.Secret(&k.RegistryPassword, string(knobRegistryPassword), "password of that user")
	}
	who := "Kafka and the schema registry"
	switch {
	case !k.registry:
		who = "Kafka"
	case !k.brokers:
		who = "the schema registry"
	}
	s.String(&k.CAFile, string(knobCAFile), "", "PEM file of who may sign the certificates of "+who+"; empty: whom the system trusts; read at every connection, like the next two")
	s.String(&k.CertFile, string(knobCertFile), "", "PEM file of this service's certificate for "+who+", with its chain; empty: none")
	s.String(&k.KeyFile, string(knobKeyFile), "", "PEM file of the certificate's key")
}

// Validate reads the files and returns every fault at once, each naming its
// knob, or nil.
func (k *Knobs) Validate() error {
	var faults []error
	refuse := func(ok bool, of knob, problem string) {
		if !ok {
			faults = append(faults, fmt.Errorf("%s: %s", of, problem))
		}
	}
	secured := false
	if k.brokers {
		refuse(len(k.Brokers) > 0, knobBrokers, "empty")
		for _, b := range k.Brokers {
			refuse(isAddress(b), knobBrokers, fmt.Sprintf("%q is not host:port", b))
		}
		refuse(k.TLS == "on" || k.TLS == "off", knobTLS, fmt.Sprintf("%q is not off or on", k.TLS))
		faults = append(faults, k.sasl().Validate())
		secured = k.TLS == "on"
	}
	if k.registry {
		refuse(len(k.Registry) > 0, knobRegistry, "empty")
		for _, u := range k.Registry {
			refuse(isURL(u), knobRegistry, fmt.Sprintf("%q is not an http(s) URL", hidePassword(u)))
		}
		secured = secured || k.RegistryConfig().secured()
		named := k.RegistryUser != ""
		refuse(named || k.RegistryPassword.Reveal() == "", knobRegistryPassword, "has no effect without "+knobRegistryUser.String())
		refuse(!named || k.RegistryPassword.Reveal() != "", knobRegistryPassword, "empty, and "+knobRegistryUser.String()+" is not")
	}
	refuse(secured || k.CAFile == "", knobCAFile, "has no effect without "+k.whatSecures())
	refuse(secured || k.CertFile == "", knobCertFile, "has no effect without "+k.whatSecures())
	refuse(secured || k.KeyFile == "", knobKeyFile, "has no effect without "+k.whatSecures())
	if secured {
		faults = append(faults, k.files().Validate())
	}
	return errors.Join(faults...)
}

// isAddress reports whether s is host:port.
func isAddress(s string) bool {
	host, port, err := net.SplitHostPort(s)
	n, perr := strconv.ParseUint(port, 10, 16)
	return err == nil && perr == nil && host != "" && n > 0
}

// whatSecures names the setting without which the files are not used.
func (k *Knobs) whatSecures() string {
	switch {
	case !k.registry:
		return knobTLS.String()
	case !k.brokers:
		return "an https URL in " + knobRegistry.String()
	}
	return knobTLS.String() + " or an https URL in " + knobRegistry.String()
}

func (k *Knobs) files() TLS { return TLS{CAFile: k.CAFile, CertFile: k.CertFile, KeyFile: k.KeyFile} }

func (k *Knobs) sasl() SASL {
	return SASL{Mechanism: strings.ToUpper(k.SASL), User: k.User, Password: k.Password}
}

// Config returns what New needs. clientID names the process at the brokers.
func (k *Knobs) Config(clientID string) Config {
	c := Config{Brokers: k.Brokers, ClientID: clientID, SASL: k.sasl()}
	if k.TLS == "on" {
		files := k.files()
		c.TLS = &files
	}
	if k.registry {
		c.SchemaRegistry = strings.Join(k.Registry, ",")
		c.RegistryUser, c.RegistryPassword = k.RegistryUser, k.RegistryPassword
		c.RegistryTLS = k.files()
	}
	return c
}

// RegistryShown returns the registry's URLs as they may be shown: without
// passwords.
func (k *Knobs) RegistryShown() string {
	shown := make([]string, len(k.Registry))
	for i, u := range k.Registry {
		shown[i] = hidePassword(u)
	}
	return strings.Join(shown, ",")
}

// RegistryConfig returns what OpenRegistry needs.
func (k *Knobs) RegistryConfig() RegistryConfig {
	return RegistryConfig{URLs: k.Registry, User: k.RegistryUser, Password: k.RegistryPassword, TLS: k.files()}
}
