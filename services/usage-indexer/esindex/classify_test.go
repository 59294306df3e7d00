package esindex_test

import (
	"testing"

	"penstock.dev/services/usage-indexer/esindex"
)

// TestClassify guarantees what becomes of a document by the answer for it, with
// the names that both stores have for the same thing.
func TestClassify(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name         string
		status       int
		kind, reason string
		want         string
	}{
		{"stored", 201, "", "", "created"},
		{"stored, by another word", 200, "", "", "created"},
		{"there already", 409, "version_conflict_engine_exception", "[x]: version conflict, document already exists", "duplicate"},
		{"full queue, Elasticsearch", 429, "es_rejected_execution_exception", "", "again"},
		{"full queue, OpenSearch", 429, "rejected_execution_exception", "", "again"},
		{"no memory", 429, "circuit_breaking_exception", "[parent] Data too large", "again"},
		{"full disk", 429, "cluster_block_exception", "flood-stage watermark", "again"},
		{"shard away", 503, "unavailable_shards_exception", "primary shard is not active", "again"},
		{"anything at fault inside", 500, "null_pointer_exception", "", "again"},
		{"read-only by hand", 403, "cluster_block_exception", "blocked by: [FORBIDDEN/8/index write (api)]", "paused"},
		{"missing rights", 403, "security_exception", "action [indices:data/write/bulk[s]] is unauthorized", "paused"},
		{"index gone", 404, "index_not_found_exception", "no such index", "paused"},
		{"no room for shards", 400, "validation_exception", "this cluster currently has [1000]/[1000] maximum open shards", "paused"},
		{"index closed", 400, "index_closed_exception", "closed", "paused"},
		{"alias without an index", 400, "illegal_argument_exception", "no write index is defined for alias [x]", "paused"},
		{"unknown field, strict", 400, "strict_dynamic_mapping_exception", "mapping set to strict", "poison"},
		{"bad value, Elasticsearch", 400, "document_parsing_exception", "failed to parse field [ts]", "poison"},
		{"bad value, OpenSearch", 400, "mapper_parsing_exception", "failed to parse field [ts]", "poison"},
		{"name of no index", 400, "invalid_index_name_exception", "must be lowercase", "poison"},
		{"a name that is new", 400, "some_new_exception", "", "doubtful"},
		{"a term that is too long", 400, "illegal_argument_exception", "immense term", "doubtful"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			if got := esindex.Classify(tt.status, tt.kind, tt.reason); got != tt.want {
				t.Errorf("%d %s is %s, want %s", tt.status, tt.kind, got, tt.want)
			}
		})
	}
}
