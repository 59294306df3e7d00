package esindex

import (
	"fmt"
	"net/http"
	"strings"
)

// A Flavor is which store is there.
type Flavor string

// The flavors.
const (
	Either        Flavor = "auto"
	Elasticsearch Flavor = "elasticsearch"
	OpenSearch    Flavor = "opensearch"
)

// The header by which Elasticsearch says that it is Elasticsearch.
const (
	productHeader = "X-Elastic-Product"
	product       = "Elasticsearch"
)

// compatible lets the client of one store speak to both: it asks for plain JSON,
// since OpenSearch answers 406 to Elasticsearch's own media type. Where one of the
// two is insisted on, the other is refused.
type compatible struct {
	flavor Flavor
	next   http.RoundTripper
}

// RoundTrip sends a request.
func (c *compatible) RoundTrip(req *http.Request) (*http.Response, error) {
	for _, name := range []string{"Accept", "Content-Type"} {
		if strings.HasPrefix(req.Header.Get(name), "application/vnd.elasticsearch+") {
			req.Header.Set(name, "application/json")
		}
	}
	resp, err := c.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	elastic := resp.Header.Get(productHeader) == product
	if resp.StatusCode < 300 && (c.flavor == Elasticsearch && !elastic || c.flavor == OpenSearch && elastic) {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("what answers at %s is not %s", req.URL.Host, c.flavor)
	}
	return resp, nil
}
