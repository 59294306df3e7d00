package kafka

import (
	"log/slog"

	"github.com/twmb/franz-go/pkg/kgo"
)

// NewClientLog is newClientLog, as the library sees it.
func NewClientLog(log *slog.Logger) kgo.Logger { return newClientLog(log, newDoor(Config{})) }
