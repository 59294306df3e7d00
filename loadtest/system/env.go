package system

import (
	"fmt"
	"os"
	"strings"
)

// ReadEnv reads a file like .run/estate.env: NAME=value a line, the value as it
// is or in single quotes as a shell takes them.
func ReadEnv(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	env := map[string]string{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		if !ok {
			return nil, fmt.Errorf("%s: %q is not NAME=value", path, line)
		}
		if inner, ok := strings.CutPrefix(value, "'"); ok {
			value = strings.ReplaceAll(strings.TrimSuffix(inner, "'"), `'\''`, "'")
		}
		env[name] = value
	}
	return env, nil
}
