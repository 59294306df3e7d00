package portal

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

//go:embed assets
var assetFiles embed.FS

//go:embed templates
var templateFiles embed.FS

// assetRoot is where assets are served.
const assetRoot = "/portal/assets/"

// An asset is a file that never changes under its name, for the name has its
// digest.
type asset struct {
	body []byte
	kind string
}

// assets are the files by the name they are served under, and that name by the
// name in the source.
type assets struct {
	files map[string]asset
	urls  map[string]string
}

var assetKinds = map[string]string{
	".css": "text/css; charset=utf-8",
	".js":  "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
}

func loadAssets() (assets, error) {
	out := assets{files: map[string]asset{}, urls: map[string]string{}}
	entries, err := fs.ReadDir(assetFiles, "assets")
	if err != nil {
		return assets{}, fmt.Errorf("portal: %w", err)
	}
	for _, e := range entries {
		body, err := assetFiles.ReadFile("assets/" + e.Name())
		if err != nil {
			return assets{}, fmt.Errorf("portal: %w", err)
		}
		ext := path.Ext(e.Name())
		kind, ok := assetKinds[ext]
		if !ok {
			return assets{}, fmt.Errorf("portal: asset %s is of no known kind", e.Name())
		}
		sum := sha256.Sum256(body)
		name := strings.TrimSuffix(e.Name(), ext) + "-" + hex.EncodeToString(sum[:6]) + ext
		out.files[name] = asset{body, kind}
		out.urls[e.Name()] = assetRoot + name
	}
	return out, nil
}

// serve answers one asset, for ever the same.
func (a assets) serve(w http.ResponseWriter, r *http.Request) {
	f, ok := a.files[r.PathValue("name")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", f.kind)
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	_, _ = w.Write(f.body) // the client is gone
}
