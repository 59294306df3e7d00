// Sample is the upstream behind the sample catalogue: three small services,
// payments, search and export, with light, heavy, slow, streaming and failing
// endpoints to try a gateway on.
//
// Every path works with and without its service's prefix, so that the same
// request can be sent to the gateway and to this port, which nothing protects.
// It keeps nothing but a count of the requests that reached it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "sample:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("sample", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:18002", "where to serve, host:port")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", *listen)
	if err != nil {
		return err
	}
	srv := &http.Server{
		Handler: newSample().handler(), ReadHeaderTimeout: 5 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx }, // ends the streams
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-ctx.Done()
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = srv.Shutdown(within)
	}()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	<-ended
	return nil
}
