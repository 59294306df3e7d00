package period

import (
	"fmt"
	"sync"
	"time"
	_ "time/tzdata" // where the machine has none
)

var zones sync.Map // name → *time.Location

// Zone returns the IANA zone of that name, e.g. Europe/Istanbul or UTC. The
// name of no zone is an error that wraps ErrSpec; so are "" and "Local", which
// would differ from machine to machine.
func Zone(name string) (*time.Location, error) {
	if z, ok := zones.Load(name); ok {
		return z.(*time.Location), nil
	}
	z, err := time.LoadLocation(name)
	if err != nil || name == "" || name == "Local" {
		return nil, fmt.Errorf("%w: zone %q is not an IANA zone", ErrSpec, name)
	}
	zones.Store(name, z)
	return z, nil
}
