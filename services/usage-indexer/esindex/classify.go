package esindex

import (
	"net/http"
	"strings"
)

// A class is what an answer means for what was sent.
type class uint8

const (
	created   class = iota // done: the document is new
	duplicate              // done: it was there
	again                  // the store cannot take it now; the same will do later
	paused                 // nothing but an operator will help, and then the same will do
	poison                 // this document will never do
	doubtful               // poison, if others like it are taken; else the store's state
	smaller                // the request is too large, whatever is in it
	malformed              // something in the request spoils all of it
)

// A fault is an error as a store answers it, for an item or a request.
type fault struct {
	Type   string `json:"type"`
	Reason string `json:"reason"`
}

// String is the fault for a person.
func (f fault) String() string {
	if f.Type == "" && f.Reason == "" {
		return "no reason given"
	}
	return strings.Trim(f.Type+": "+f.Reason, ": ")
}

// poisonTypes lie in the document: what the mapping or the parser refuses.
// Elasticsearch and OpenSearch call them differently.
var poisonTypes = map[string]bool{
	"strict_dynamic_mapping_exception": true,
	"document_parsing_exception":       true, // Elasticsearch
	"mapper_parsing_exception":         true, // OpenSearch, and older Elasticsearch
	"invalid_index_name_exception":     true,
}

// operatorTypes lie in the state of the store in spite of a 4xx: a read-only or
// closed index, no room for one more shard, an alias without a place to write.
var operatorTypes = map[string]bool{
	"cluster_block_exception":         true,
	"index_not_found_exception":       true,
	"index_closed_exception":          true,
	"validation_exception":            true,
	"security_exception":              true,
	"index_create_block_exception":    true,
	"process_cluster_event_exception": true,
}

// classifyItem says what the answer for one document means.
func classifyItem(status int, f fault) class {
	switch {
	case status >= 200 && status < 300:
		return created
	case status == http.StatusConflict:
		return duplicate
	case status == http.StatusTooManyRequests, status >= 500, status == http.StatusRequestTimeout:
		return again // also of flood stage, which the store lifts by itself
	case operatorTypes[f.Type], strings.Contains(f.Reason, "no write index"),
		status == http.StatusForbidden, status == http.StatusUnauthorized, status == http.StatusNotFound:
		return paused
	case status == http.StatusBadRequest && poisonTypes[f.Type]:
		return poison
	}
	return doubtful
}

// classifyRequest says what an answer other than 2xx means for all that was
// sent.
func classifyRequest(status int) class {
	switch status {
	case http.StatusRequestEntityTooLarge, http.StatusTooManyRequests:
		return smaller // a full queue, or more bytes than the store will hold at once
	case http.StatusBadRequest:
		return malformed
	}
	if status >= 500 || status == http.StatusRequestTimeout {
		return again
	}
	return paused
}
