package httpapi

import (
	_ "embed"
	"net/http"
)

// Paths of the document that describes this face.
const (
	openAPIJSONPath = "/openapi.json"
	openAPIYAMLPath = "/openapi.yaml"
)

var (
	//go:embed openapi.yaml
	openAPIYAML []byte
	//go:embed openapi.json
	openAPIJSON []byte
)

// serveOpenAPI needs no token: the document is public.
func serveOpenAPI(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-cache")
	text, media := openAPIJSON, "application/json"
	if r.URL.Path == openAPIYAMLPath {
		text, media = openAPIYAML, "application/yaml"
	}
	w.Header().Set("Content-Type", media)
	_, _ = w.Write(text)
}
