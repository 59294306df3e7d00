package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// KafkaSecurity describes a listener for clients that must prove who they are.
// With Certificate it speaks TLS, with User it wants SASL by PLAIN,
// SCRAM-SHA-256 or SCRAM-SHA-512; at least one of the two is given. Everything is
// PEM text.
type KafkaSecurity struct {
	Port        int    // 0 picks a free one; always 0 for a cluster
	Certificate string // of the server and of who issued it; Java wants subjects in them
	Key         string // of Certificate, PKCS #8
	ClientCA    string // when given, clients must show a certificate that it issued
	// User and Password hold for the directory's first start: SCRAM keeps them in
	// the log. Letters, digits and .-_~ only: they pass through two Java syntaxes.
	User, Password string
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9._~-]+$`)

func (s *KafkaSecurity) protocol() string {
	switch {
	case s.User == "":
		return "SSL"
	case s.Certificate == "":
		return "SASL_PLAINTEXT"
	default:
		return "SASL_SSL"
	}
}

// install writes the certificates into dir and returns the properties of the
// listener.
func (s *KafkaSecurity) install(dir string) ([]string, error) {
	if s.User == "" && s.Certificate == "" {
		return nil, errors.New("a secure listener needs a certificate, a user, or both")
	}
	var lines []string
	set := func(name, value string) { lines = append(lines, "listener.name.secure."+name+"="+value) }
	if s.Certificate != "" {
		path := filepath.Join(dir, "server.pem")
		if err := os.WriteFile(path, []byte(s.Key+"\n"+s.Certificate), 0o600); err != nil {
			return nil, err
		}
		set("ssl.keystore.type", "PEM")
		set("ssl.keystore.location", path)
	}
	if s.ClientCA != "" {
		path := filepath.Join(dir, "client-ca.pem")
		if err := os.WriteFile(path, []byte(s.ClientCA), 0o600); err != nil {
			return nil, err
		}
		set("ssl.truststore.type", "PEM")
		set("ssl.truststore.location", path)
		set("ssl.client.auth", "required")
	}
	if s.User == "" {
		return lines, nil
	}
	if !plainWord.MatchString(s.User) || !plainWord.MatchString(s.Password) {
		return nil, errors.New("user and password of a secure listener: want letters, digits and .-_~")
	}
	const modules = "org.apache.kafka.common.security."
	set("sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512")
	set("plain.sasl.jaas.config", fmt.Sprintf(modules+`plain.PlainLoginModule required user_%s="%s";`, s.User, s.Password))
	for _, mechanism := range []string{"scram-sha-256", "scram-sha-512"} {
		set(mechanism+".sasl.jaas.config", modules+"scram.ScramLoginModule required;")
	}
	return lines, nil
}

// scram returns the arguments that make the user when a log is formatted.
func (s *KafkaSecurity) scram() []string {
	if s == nil || s.User == "" {
		return nil
	}
	var args []string
	for _, mechanism := range []string{"SCRAM-SHA-256", "SCRAM-SHA-512"} {
		args = append(args, "--add-scram", fmt.Sprintf("%s=[name=%s,password=%s]", mechanism, s.User, s.Password))
	}
	return args
}
