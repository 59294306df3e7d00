package period

import (
	"archive/zip"
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"sync"
	"time"
)

// zoneData is the IANA time zone database 2025c (in the public domain), as Go
// 1.26 ships it in lib/time/zoneinfo.zip. It is ours rather than the machine's
// so that all services agree, on every machine, where a day begins; a change
// of law is a change of this file.
//
//go:embed tzdata-2025c.zip
var zoneData []byte

var archive = sync.OnceValues(func() (*zip.Reader, error) {
	return zip.NewReader(bytes.NewReader(zoneData), int64(len(zoneData)))
})

var zones sync.Map // name → *time.Location

// Zone returns the IANA zone of that name, e.g. Europe/Istanbul or UTC. The
// name of no zone is an error that wraps ErrSpec; so are "" and "Local". It is
// safe for concurrent use.
func Zone(name string) (*time.Location, error) {
	if z, ok := zones.Load(name); ok {
		return z.(*time.Location), nil
	}
	z, err := load(name)
	if err != nil {
		return nil, fmt.Errorf("%w: zone %q is not an IANA zone", ErrSpec, name)
	}
	zones.Store(name, z)
	return z, nil
}

func load(name string) (*time.Location, error) {
	if name == "UTC" {
		return time.UTC, nil
	}
	files, err := archive()
	if err != nil {
		return nil, err
	}
	file, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // read only
	data, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	return time.LoadLocationFromTZData(name, data)
}
