package postgres

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/jackc/pglogrepl"

	"penstock.dev/services/outbox-relay/outbox"
)

// columns are what an outbox must have; Debezium's Outbox Event Router fixes
// the first five, version is ours.
var columns = []string{"id", "aggregatetype", "aggregateid", "type", "payload", "version"}

// rows turns the log's tuples into events. Tables are found by their columns,
// not by name: the publication says which tables are outboxes.
type rows struct {
	relations map[uint32]relation
}

type relation struct {
	name  string
	index map[string]int // column name to position in the tuple
}

func newRows() *rows { return &rows{relations: map[uint32]relation{}} }

// learn notes a table's columns. It is sent before a table's first row and
// again after each change of the table.
func (r *rows) learn(m *pglogrepl.RelationMessage) error {
	rel := relation{name: m.Namespace + "." + m.RelationName, index: map[string]int{}}
	for i, c := range m.Columns {
		rel.index[c.Name] = i
	}
	for _, c := range columns {
		if _, ok := rel.index[c]; !ok {
			return fmt.Errorf("%w: table %s is published and has no column %s", errRow, rel.name, c)
		}
	}
	r.relations[m.RelationID] = rel
	return nil
}

func (r *rows) event(m *pglogrepl.InsertMessage) (outbox.Event, error) {
	rel, ok := r.relations[m.RelationID]
	if !ok {
		return outbox.Event{}, fmt.Errorf("%w: row of an unknown table %d", errRow, m.RelationID)
	}
	text := func(column string) string {
		return string(m.Tuple.Columns[rel.index[column]].Data)
	}
	e := outbox.Event{
		ID: text("id"), Topic: text("aggregatetype"), Key: text("aggregateid"),
		Type: text("type"), Version: text("version"),
	}
	payload := m.Tuple.Columns[rel.index["payload"]]
	if payload.DataType == pglogrepl.TupleDataTypeNull {
		return e, nil
	}
	digits, ok := strings.CutPrefix(string(payload.Data), `\x`)
	if !ok {
		return e, fmt.Errorf("%w: row %s of %s: payload is not bytea in hex form", errRow, e.ID, rel.name)
	}
	var err error
	if e.Payload, err = hex.DecodeString(digits); err != nil {
		return e, fmt.Errorf("%w: row %s of %s: payload: %w", errRow, e.ID, rel.name, err)
	}
	return e, nil
}
