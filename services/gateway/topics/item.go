package topics

import (
	"context"
	"errors"
	"hash/crc32"
	"time"

	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/wire"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/kafka"
)

// An item is what one record of the log comes to.
type item struct {
	key       string
	change    decide.Change
	value     []byte // of a good record
	changedAt time.Time
	aside     *aside // set when the record is set aside
}

// read says what a record comes to. An error means that nobody can say, now.
func (r *Rules) read(ctx context.Context, rec *kafka.Record) (item, error) {
	it := item{key: string(rec.Key), changedAt: rec.Timestamp}
	kind, id, err := rulesv1.ParseKey(rec.Key)
	if errors.Is(err, wire.ErrPoison) {
		r.metrics.records.WithLabelValues(string(rulesv1.KindUnknown)).Inc()
		r.setAside(&it, rec, badKey, err)
		return it, nil
	}
	it.change = decide.Change{Kind: decide.Kind(kind), ID: id}
	switch it.change.Version, err = versionOf(rec); {
	case err != nil && rec.Value == nil:
		r.setAside(&it, rec, undecodable, err)
	case rec.Value != nil && kind != rulesv1.KindUnknown:
		if err := r.decode(ctx, &it, rec); err != nil {
			return item{}, err
		}
	}
	r.metrics.records.WithLabelValues(string(kind)).Inc()
	return it, nil
}

// decode reads the value of a record into it.
func (r *Rules) decode(ctx context.Context, it *item, rec *kafka.Record) error {
	record, err := r.decoder.Decode(ctx, rec.Key, rec.Value)
	if err == nil {
		it.change.Version, it.changedAt, it.value = record.Version, time.UnixMicro(record.ChangedAt), rec.Value
		it.change.Object, err = object(&record)
	}
	why := reason("")
	switch {
	case err == nil, errors.Is(err, wire.ErrSkip):
		return nil
	case errors.Is(err, wire.ErrSetAside):
		why = tooNew
		it.change.Version = record.Version
	case errors.Is(err, wire.ErrPoison):
		why = undecodable
	case errors.Is(err, errUnsupported):
		why = unsupported
	case errors.Is(err, errInvalid):
		why = invalid
	default:
		return err
	}
	r.setAside(it, rec, why, err)
	return nil
}

// setAside makes it keep what is in force, and says so once.
func (r *Rules) setAside(it *item, rec *kafka.Record, why reason, cause error) {
	it.change.Object, it.change.Keep, it.value = nil, true, nil
	it.aside = &aside{
		mark:   mark{rec.Partition, rec.Offset, rec.Timestamp.UnixMicro(), crc32.ChecksumIEEE(rec.Value)},
		reason: why, cause: cause.Error(), kind: it.change.Kind, id: it.change.ID,
	}
	r.metrics.poison.WithLabelValues(string(why)).Inc()
	r.log.Error("record set aside", "topic", rec.Topic, "partition", rec.Partition, "offset", rec.Offset,
		"key", it.key, "reason", string(why), "error", cause.Error())
}

// versionOf is the version that a record's header says, 0 when it has none.
func versionOf(rec *kafka.Record) (int64, error) {
	for _, h := range rec.Headers {
		if h.Key == rulesv1.HeaderVersion {
			return rulesv1.ParseVersion(h.Value)
		}
	}
	return 0, nil
}
