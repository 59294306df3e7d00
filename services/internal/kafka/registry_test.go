package kafka_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
)

const (
	schemaV1 = `{"type":"record","name":"R","fields":[{"name":"a","type":"string"}]}`
	schemaV2 = `{"type":"record","name":"R","fields":[{"name":"a","type":"string"},{"name":"b","type":"long","default":0}]}`
	schemaV3 = `{"type":"record","name":"R","fields":[{"name":"c","type":"string"}]}`
)

// TestRegistry guarantees that schemas get one id each, that ids lead back to
// text and subjects, and that a verdict of the registry can be told from
// trouble with it.
func TestRegistry(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	r := open(t, b).Registry()
	ctx := t.Context()
	first, err := r.Register(ctx, "rules.v1-value", schemaV1)
	if err != nil {
		t.Fatal(err)
	}
	again, err := r.Register(ctx, "rules.v1-value", schemaV1)
	if err != nil || again != first {
		t.Errorf("the same schema again = %d, %v, want %d", again, err, first)
	}
	second, err := r.Register(ctx, "rules.v1-value", schemaV2)
	if err != nil || second == first {
		t.Errorf("another schema = %d, %v, want another id than %d", second, err, first)
	}
	text, subjects, err := r.Schema(ctx, first)
	if err != nil || text != schemaV1 || !slices.Equal(subjects, []string{"rules.v1-value"}) {
		t.Errorf("Schema = %q, %v, %v", text, subjects, err)
	}
	if _, err := r.Register(ctx, "rules.v1-value", schemaV3); !errors.Is(err, kafka.ErrRegistryRefused) {
		t.Errorf("an incompatible schema = %v, want ErrRegistryRefused", err)
	}
	if _, err := r.Register(ctx, "rules.v1-value", "{"); !errors.Is(err, kafka.ErrRegistryRefused) {
		t.Errorf("no schema at all = %v, want ErrRegistryRefused", err)
	}
	_, _, err = r.Schema(ctx, 4711)
	var known interface{ NotFound() bool } // what schemas/wire looks for
	if !errors.Is(err, kafka.ErrRegistryNotFound) || !errors.As(err, &known) || !known.NotFound() {
		t.Errorf("an unknown id = %v, want ErrRegistryNotFound", err)
	}
	b.Stop()
	if _, _, err := r.Schema(ctx, first); err == nil || errors.Is(err, kafka.ErrRegistryNotFound) || errors.Is(err, kafka.ErrRegistryRefused) {
		t.Errorf("a registry that is away = %v, want a temporary error", err)
	}
}

// TestRegistryTemporaryErrors guarantees that only the registry's own verdict
// is permanent: somebody else's page, a failing server and a missing right are
// worth another attempt.
func TestRegistryTemporaryErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		status int
		body   string
	}{
		{"a page of something else", http.StatusNotFound, "<html>404</html>"},
		{"an error of the server", http.StatusInternalServerError, `{"error_code":50001,"message":"store"}`},
		{"a missing right", http.StatusUnauthorized, `{"error_code":401,"message":"who?"}`},
		{"too many requests", http.StatusTooManyRequests, `{"error_code":429,"message":"later"}`},
		{"an answer without sense", http.StatusOK, "hello"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tt.status)
				_, _ = w.Write([]byte(tt.body))
			}))
			t.Cleanup(s.Close)
			r := kafka.NewRegistry(s.URL)
			_, err1 := r.Register(t.Context(), "s", schemaV1)
			_, _, err2 := r.Schema(t.Context(), 1)
			for _, err := range []error{err1, err2} {
				if err == nil || errors.Is(err, kafka.ErrRegistryNotFound) || errors.Is(err, kafka.ErrRegistryRefused) {
					t.Errorf("error = %v, want a temporary one", err)
				}
			}
		})
	}
}

// TestRegistryTriesEveryURL guarantees that one registry of several may be
// away, and that a list in one string is as good as several strings.
func TestRegistryTriesEveryURL(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	away := kafkatest.Reserve(t).RegistryURL
	for _, urls := range [][]string{{away, b.RegistryURL}, {away + ", " + b.RegistryURL}} {
		if _, err := kafka.NewRegistry(urls...).Register(t.Context(), "s-value", schemaV1); err != nil {
			t.Errorf("Register at %v = %v, want nil", urls, err)
		}
	}
	if _, err := kafka.NewRegistry().Register(t.Context(), "s-value", schemaV1); err == nil {
		t.Error("Register at no URL = nil, want an error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := kafka.NewRegistry(b.RegistryURL).Register(ctx, "s-value", schemaV1); !errors.Is(err, context.Canceled) {
		t.Errorf("Register without time = %v, want context.Canceled", err)
	}
}
