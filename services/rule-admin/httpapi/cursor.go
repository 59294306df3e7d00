package httpapi

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"penstock.dev/services/internal/rule"
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

// openIDCursor returns the id behind which a page begins; empty for the first.
func openIDCursor(scope, cursor string) (string, error) {
	after, err := openCursor(scope, cursor)
	if err != nil {
		return "", err
	}
	var faults rule.Faults
	if faults.ID("cursor", after); after != "" && len(faults) > 0 {
		return "", errCursor // made up, with its check
	}
	return after, nil
}

// openRevisionCursor returns the revision below which a page begins; 0 for the
// first.
func openRevisionCursor(scope, cursor string) (int64, error) {
	before, err := openCursor(scope, cursor)
	if err != nil || before == "" {
		return 0, err
	}
	n, err := strconv.ParseInt(before, 10, 64)
	if err != nil || n < 1 {
		return 0, errCursor
	}
	return n, nil
}

// usageScope is that of pages of usage.
const usageScope = "usage/1"

func topUpsScope(tenant string) string { return fmt.Sprintf("topups/1/%q", tenant) }

func listScope(kind catalog.Kind) string { return "list/1/" + string(kind) }

func auditScope(s catalog.Search) string {
	return strings.Join([]string{"audit/1", string(s.Kind), fmt.Sprintf("%q", s.ObjectID), fmt.Sprintf("%q", s.Actor)}, "/")
}
