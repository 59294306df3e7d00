package httpapi

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"penstock.dev/services/rule-admin/catalog"
)

// An Operation is what a request asks for: a closed set, for metrics.
type Operation string

// The operations.
const (
	OpList        Operation = "list"
	OpGet         Operation = "get"
	OpPut         Operation = "put"
	OpDelete      Operation = "delete"
	OpAudit       Operation = "audit"
	OpTopUp       Operation = "topup"
	OpTopUps      Operation = "topups"
	OpUsage       Operation = "usage"
	OpTenantUsage Operation = "tenant-usage"
	OpExplain     Operation = "explain"
	OpOpenAPI     Operation = "openapi"
	OpNone        Operation = "none" // no such path, or not by that method
)

func (o Operation) writes() bool { return o == OpPut || o == OpDelete || o == OpTopUp }

// collections are the paths of the kinds.
var collections = map[string]catalog.Kind{
	"tenants":      catalog.KindTenant,
	"applications": catalog.KindApplication,
	"users":        catalog.KindUser,
	"api-keys":     catalog.KindAPIKey,
	"services":     catalog.KindService,
	"endpoints":    catalog.KindEndpoint,
	"plans":        catalog.KindPlan,
	"rules":        catalog.KindRule,
}

// A target is what a path names.
type target struct {
	kind catalog.Kind
	id   string
}

// A method is a method that a path has.
type method struct {
	name string
	op   Operation
}

var (
	collectionMethods  = []method{{http.MethodGet, OpList}}
	objectMethods      = []method{{http.MethodGet, OpGet}, {http.MethodPut, OpPut}, {http.MethodDelete, OpDelete}}
	auditMethods       = []method{{http.MethodGet, OpAudit}}
	topUpMethods       = []method{{http.MethodGet, OpTopUps}, {http.MethodPost, OpTopUp}}
	usageMethods       = []method{{http.MethodGet, OpUsage}}
	tenantUsageMethods = []method{{http.MethodGet, OpTenantUsage}}
	explainMethods     = []method{{http.MethodPost, OpExplain}}
	openAPIMethods     = []method{{http.MethodGet, OpOpenAPI}}
)

// belowTenant are the paths below one tenant's.
var belowTenant = map[string][]method{"topups": topUpMethods, "usage": tenantUsageMethods}

// route returns what an escaped path names and the methods that it has; none
// when there is no such path. Segments are decoded one by one, so an id with an
// escaped slash is an id, and no id.
func route(escaped string) (target, []method) {
	switch escaped {
	case openAPIJSONPath, openAPIYAMLPath:
		return target{}, openAPIMethods
	case "/v1/audit":
		return target{}, auditMethods
	case "/v1/usage":
		return target{}, usageMethods
	case "/v1/explain":
		return target{}, explainMethods
	}
	rest, ok := strings.CutPrefix(escaped, "/v1/")
	if !ok {
		return target{}, nil
	}
	collection, id, object := strings.Cut(rest, "/")
	kind, ok := collections[collection]
	if ok && !object {
		return target{kind: kind}, collectionMethods
	}
	methods := objectMethods
	if owner, below, deeper := strings.Cut(id, "/"); deeper {
		if methods, id = belowTenant[below], owner; kind != catalog.KindTenant {
			methods = nil
		}
	}
	id, err := url.PathUnescape(id)
	if !ok || id == "" || err != nil || methods == nil {
		return target{}, nil
	}
	return target{kind: kind, id: id}, methods
}

// operation returns the operation of a method. HEAD is GET without a body,
// which the server sees to.
func operation(methods []method, name string) (Operation, error) {
	if name == http.MethodHead {
		name = http.MethodGet
	}
	allowed := make([]string, 0, len(methods)+1)
	for _, m := range methods {
		if m.name == name {
			return m.op, nil
		}
		allowed = append(allowed, m.name)
		if m.name == http.MethodGet {
			allowed = append(allowed, http.MethodHead)
		}
	}
	return "", &methodError{allow: strings.Join(allowed, ", ")}
}

// A methodError is errMethod with the methods that there are.
type methodError struct{ allow string }

func (e *methodError) Error() string { return fmt.Sprintf("%s: want one of %s", errMethod, e.allow) }

func (e *methodError) Unwrap() error { return errMethod }
