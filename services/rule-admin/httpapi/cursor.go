package httpapi

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"

	"penstock.dev/services/rule-admin/catalog"
)

// A cursor says where a page begins. It is opaque, and checked: one that was
// made up, altered, or made for another list is refused. It is no secret, and
// needs no key that instances would have to share.

// cursorCheck is how many bytes of a digest a cursor begins with.
const cursorCheck = 8

var errCursor = fault(catalog.ErrInvalid, "cursor", "is not a cursor of this list")

// sealCursor returns the cursor of a list that goes on behind position.
func sealCursor(scope, position string) string {
	sum := sha256.Sum256([]byte(scope + "\x00" + position))
	return base64.RawURLEncoding.EncodeToString(append(sum[:cursorCheck], position...))
}

// openCursor returns the position; empty for the first page.
func openCursor(scope, cursor string) (string, error) {
	if cursor == "" {
		return "", nil
	}
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(b) <= cursorCheck {
		return "", errCursor
	}
	position := string(b[cursorCheck:])
	if sealCursor(scope, position) != cursor {
		return "", errCursor
	}
	return position, nil
}

func listScope(kind catalog.Kind) string { return "list/1/" + string(kind) }

func auditScope(s catalog.Search) string {
	return strings.Join([]string{"audit/1", string(s.Kind), fmt.Sprintf("%q", s.ObjectID), fmt.Sprintf("%q", s.Actor)}, "/")
}
