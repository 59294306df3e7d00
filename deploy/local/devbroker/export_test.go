package devbroker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Restore is restore, and LogFiles logFiles.
var (
	Restore  = restore
	LogFiles = logFiles
)

// Secure gives the files of compacted topics their second names and stops
// there, as a process that dies before the broker compacts.
func (b *Broker) Secure(ctx context.Context) error {
	partitions, err := b.compacted(ctx)
	if err != nil {
		return err
	}
	return secure(b.logDir(), b.safeDir(), partitions)
}

// CompactAndDie is Compact without its last step.
func (b *Broker) CompactAndDie(ctx context.Context) error {
	if err := b.Secure(ctx); err != nil {
		return err
	}
	b.cluster.Compact()
	return nil
}

// Batch is a batch that holds one offset.
func Batch(offset int64) []byte {
	batch := kmsg.RecordBatch{FirstOffset: offset, Magic: 2}
	raw := batch.AppendTo(nil)
	batch.Length = int32(len(raw) - 12)
	return batch.AppendTo(nil)
}
