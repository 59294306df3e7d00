package esindex_test

import (
	"context"
	"net/http"
)

func httpDelete(ctx context.Context, path string) (*http.Request, error) {
	return http.NewRequestWithContext(ctx, http.MethodDelete, "http://store.invalid"+path, nil)
}
