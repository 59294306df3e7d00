package grpcapi

import (
	"context"
	"net"
)

// Listen serves a face on ln until ctx ends.
func Listen(ctx context.Context, cfg Config, face *Face, ln net.Listener) error {
	return serve(ctx, cfg, face, ln)
}

// Codes are the reasons that have a status of their own.
func Codes() map[string]Code { return statuses }
