package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ConnectOptions configures StartConnect.
type ConnectOptions struct {
	Port    int    // of Connect's REST interface; 0 picks a free one
	Brokers string // bootstrap servers
	// Worker and Connector are the two property files. StartConnect adds to
	// Worker, unless they are there, what it knows: bootstrap.servers,
	// listeners, plugin.path, plugin.discovery, offset.storage.file.filename.
	// Connector needs a name.
	Worker, Connector map[string]string
	HeapMB            int // 0 means 256
	Run
}

// StartConnect starts Kafka Connect 4.3.1 in standalone mode with Debezium's
// PostgreSQL connector 3.6.1 installed, and returns when the connector and its
// first task are RUNNING. URL of the process is Connect's REST interface.
func StartConnect(ctx context.Context, dir string, o ConnectOptions) (*Process, error) {
	spec, err := connectSpec(ctx, dir, o)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return Start(ctx, spec)
}

func connectSpec(ctx context.Context, dir string, o ConnectOptions) (Spec, error) {
	name := o.Connector["name"]
	if name == "" {
		return Spec{}, errors.New("the connector has no name")
	}
	java, classPath, err := kafkaRuntime(ctx, o.Run)
	if err != nil {
		return Spec{}, err
	}
	port, err1 := orFree(ctx, o.Port, dir, o.Run, addrOf)
	dir, err2 := filepath.Abs(dir)
	if err := errors.Join(err1, err2); err != nil {
		return Spec{}, err
	}
	plugins, err := pluginPath(ctx, dir, o.Run)
	if err != nil {
		return Spec{}, err
	}
	addr := loopback(port)
	worker, connector := filepath.Join(dir, "worker.properties"), filepath.Join(dir, "connector.properties")
	defaults := map[string]string{
		"bootstrap.servers": o.Brokers,
		"listeners":         "http://" + addr,
		"plugin.path":       plugins,
		// Without it the worker scans every class: 28 s and 431 MB to start, for 5 s and 145 MB.
		"plugin.discovery":             "service_load",
		"offset.storage.file.filename": filepath.Join(dir, "offsets"),
		"offset.flush.interval.ms":     "1000",
	}
	for k, v := range o.Worker {
		defaults[k] = v
	}
	err = errors.Join(
		os.WriteFile(worker, properties(defaults), 0o644),
		os.WriteFile(connector, properties(o.Connector), 0o600)) // it may hold a password
	if err != nil {
		return Spec{}, err
	}
	heap := o.HeapMB
	if heap == 0 {
		heap = 256
	}
	args := append(jvmArgs(heap), "-cp", classPath, "org.apache.kafka.connect.cli.ConnectStandalone", worker, connector)
	url := "http://" + addr
	return Spec{
		Name: "connect", Path: java, Args: args, Dir: dir, Addr: addr, URL: url,
		Ready:      func(ctx context.Context) error { return connectorRuns(ctx, url, name) },
		StopWithin: 2 * defaultStop,
		Run:        o.Run,
	}, nil
}

// pluginPath makes a folder of plugin folders with Debezium's in it: a folder of
// jars would be taken for as many plugins.
func pluginPath(ctx context.Context, dir string, run Run) (string, error) {
	jars, err := jars(ctx, debeziumJars(), run)
	if err != nil {
		return "", err
	}
	plugins := filepath.Join(dir, "plugins")
	if err := errors.Join(os.RemoveAll(plugins), os.MkdirAll(plugins, 0o755)); err != nil {
		return "", err
	}
	return plugins, os.Symlink(jars, filepath.Join(plugins, "debezium"))
}

// properties writes a Java property file, sorted, so that it can be compared.
func properties(m map[string]string) []byte {
	escape := strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	lines := make([]string, 0, len(m))
	for k, v := range m {
		lines = append(lines, k+"="+escape.Replace(v)+"\n")
	}
	slices.Sort(lines)
	return []byte(strings.Join(lines, ""))
}

// connectorRuns wants the connector and its first task to be RUNNING.
func connectorRuns(ctx context.Context, url, name string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/connectors/"+name+"/status", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	var status struct {
		Connector struct {
			State string `json:"state"`
		} `json:"connector"`
		Tasks []struct {
			State string `json:"state"`
			Trace string `json:"trace"`
		} `json:"tasks"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&status); err != nil {
		return err
	}
	if len(status.Tasks) == 0 {
		return fmt.Errorf("connector %s is %q and has no task", name, status.Connector.State)
	}
	if task := status.Tasks[0]; task.State == "FAILED" {
		cause, _, _ := strings.Cut(task.Trace, "\n") // the log has the rest
		return Never(fmt.Errorf("connector %s: its task failed: %s", name, cause))
	}
	if task := status.Tasks[0]; status.Connector.State != "RUNNING" || task.State != "RUNNING" {
		return fmt.Errorf("connector %s is %q, its task %q", name, status.Connector.State, task.State)
	}
	return nil
}
