package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// drain is how long running requests may take when the service stops. It lies
// below the process's grace.
const drain = 10 * time.Second

// Serve returns a part's Run: it serves h on listen, host:port, until ctx ends,
// and then finishes what is running.
func Serve(listen string, h http.Handler) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		srv := &http.Server{
			Handler:           h,
			ReadHeaderTimeout: 5 * time.Second,
			ReadTimeout:       15 * time.Second,
			WriteTimeout:      30 * time.Second,
			IdleTimeout:       2 * time.Minute,
			MaxHeaderBytes:    32 << 10,
		}
		stopped := make(chan error, 1)
		context.AfterFunc(ctx, func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
			defer cancel()
			stopped <- srv.Shutdown(ctx)
		})
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return <-stopped
	}
}
