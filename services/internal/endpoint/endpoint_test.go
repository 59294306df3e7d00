package endpoint_test

import (
	"testing"

	"penstock.dev/services/internal/endpoint"
)

// TestFind guarantees which template a path is taken for.
func TestFind(t *testing.T) {
	t.Parallel()

	var tree endpoint.Tree[string]
	for _, e := range []struct{ id, method, template string }{
		{"root", "", "/"},
		{"list", "GET", "/v1/orders"},
		{"make", "POST", "/v1/orders"},
		{"any", "", "/v1/orders"},
		{"one", "GET", "/v1/orders/{id}"},
		{"latest", "GET", "/v1/orders/latest"},
		{"items", "GET", "/v1/orders/{id}/items"},
		{"left", "GET", "/v1/{what}/latest/items"},
		{"twin-b", "PUT", "/v1/twins"},
		{"twin-a", "PUT", "/v1/twins/"},
		{"probe", "HEAD", "/v1/orders/latest"},
	} {
		tree.Add(e.id, e.method, e.template, e.id)
	}
	for _, tt := range []struct{ method, path, want string }{
		{"GET", "/", "root"},
		{"GET", "", "root"},
		{"GET", "/v1/orders", "list"},
		{"POST", "/v1/orders", "make"},
		{"DELETE", "/v1/orders", "any"},
		{"HEAD", "/v1/orders", "list"},
		{"HEAD", "/v1/orders/latest", "probe"},
		{"GET", "/v1/orders/", "list"},
		{"GET", "/v1/orders;v=1", "list"},
		{"GET", "/v1/orders/7;v=1/items", "items"},
		{"GET", "/v1/orders/latest", "latest"},
		{"GET", "/v1/orders/latest/items", "items"}, // the literal further left
		{"GET", "/v1/baskets/latest/items", "left"},
		{"GET", "/v1/orders/7", "one"},
		{"POST", "/v1/orders/7", ""},
		{"GET", "/v1/orders//items", "one"}, // a doubled slash is one
		{"GET", "/v1/Orders", ""},
		{"GET", "/v1", ""},
		{"PUT", "/v1/twins", "twin-a"},
	} {
		if got, ok := tree.Find(tt.method, tt.path); got != tt.want || ok != (tt.want != "") {
			t.Errorf("%s %s is %q, want %q", tt.method, tt.path, got, tt.want)
		}
	}
}

// TestFindInNothing guarantees that an empty tree has no endpoint.
func TestFindInNothing(t *testing.T) {
	t.Parallel()

	var tree endpoint.Tree[*int]
	if e, ok := tree.Find("GET", "/"); e != nil || ok {
		t.Error("there is one")
	}
}

// TestFindAllocates guarantees that the data plane pays no allocation.
func TestFindAllocates(t *testing.T) {
	var tree endpoint.Tree[string]
	tree.Add("one", "GET", "/v1/orders/{id}", "one")
	if n := testing.AllocsPerRun(100, func() { tree.Find("HEAD", "/v1/orders/17") }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
