package grpcapi

import (
	"context"
	"net"
)

// Listen serves a face on ln until ctx ends.
func Listen(ctx context.Context, cfg Config, face *Face, ln net.Listener) error {
	return newEngine(cfg, face).serve(ctx, ln)
}

// Codes are the reasons that have a status of their own.
func Codes() map[string]Code { return statuses }
