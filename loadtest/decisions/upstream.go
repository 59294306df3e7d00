package decisions

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// An upstream answers at once.
type upstream struct {
	url    string
	server *http.Server
	ended  chan error
}

func startUpstream(ctx context.Context) (*upstream, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	u := &upstream{url: "http://" + ln.Addr().String(), ended: make(chan error, 1)}
	u.server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"thing": "done"}` + "\n"))
	})}
	go func() { u.ended <- u.server.Serve(ln) }()
	return u, nil
}

func (u *upstream) stop() error {
	err := u.server.Close()
	if ended := <-u.ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}
