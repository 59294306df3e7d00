package server

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// KafkaOptions configures StartKafka.
type KafkaOptions struct {
	Port           int      // 0 picks a free one
	ControllerPort int      // 0 picks a free one
	HeapMB         int      // 0 means 512
	Properties     []string // further server properties, name=value, last
	// Secure adds a listener with TLS, SASL or both; its address is SecureAddr of
	// the process. Nil adds none.
	Secure *KafkaSecurity
	Run
}

// StartKafka starts one node of Apache Kafka 4.3.1, broker and controller at
// once, on 127.0.0.1, set up for a small machine: it is ready in 3 to 7 s and
// takes about 200 MB. Topics are not created by being used.
func StartKafka(ctx context.Context, dir string, o KafkaOptions) (*Process, error) {
	spec, err := kafkaSpec(ctx, dir, o)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	return Start(ctx, spec)
}

func kafkaSpec(ctx context.Context, dir string, o KafkaOptions) (Spec, error) {
	run := kafkaRun{heapMB: o.HeapMB, properties: o.Properties, secure: o.Secure, replicas: 1, Run: o.Run}
	node := kafkaNode{id: 1, name: "kafka", dir: dir, port: o.Port, controllerPort: o.ControllerPort}
	if err := errors.Join(run.prepare(ctx), node.locate(ctx, run)); err != nil {
		return Spec{}, err
	}
	run.voters = node.voter()
	return run.spec(ctx, node)
}

// A kafkaRun is what all nodes of a cluster have in common.
type kafkaRun struct {
	java, classPath string
	heapMB          int
	properties      []string
	secure          *KafkaSecurity
	voters          string // the controllers, as Kafka wants them listed
	replicas        int    // of every topic; one less must be in sync, or one
	Run
}

// prepare gets the software.
func (r *kafkaRun) prepare(ctx context.Context) (err error) {
	if r.heapMB == 0 {
		r.heapMB = 512
	}
	r.java, r.classPath, err = kafkaRuntime(ctx, r.Run)
	return err
}

// A kafkaNode is one server. Ports of 0 are picked by locate.
type kafkaNode struct {
	id                               int
	name, dir                        string
	port, controllerPort, securePort int
}

func (n *kafkaNode) locate(ctx context.Context, r kafkaRun) error {
	var err1, err2, err3, err4 error
	n.port, err1 = orFree(ctx, n.port, n.dir, r.Run, addrOf)
	n.controllerPort, err2 = orFree(ctx, n.controllerPort, n.dir, Run{}, nil)
	if r.secure != nil {
		n.securePort, err3 = orFree(ctx, r.secure.Port, n.dir, r.Run, secureAddrOf)
	}
	n.dir, err4 = filepath.Abs(n.dir)
	return errors.Join(err1, err2, err3, err4)
}

func (n *kafkaNode) voter() string {
	return fmt.Sprintf("%d@%s", n.id, loopback(n.controllerPort))
}

// spec writes the configuration of a node, formats its log directory unless
// that has been done, and describes its process.
func (r *kafkaRun) spec(ctx context.Context, n kafkaNode) (Spec, error) {
	config := filepath.Join(n.dir, "server.properties")
	data := filepath.Join(n.dir, "data")
	lines := r.kafkaProperties(n, data)
	spec := Spec{
		Name: n.name, Path: r.java, Dir: n.dir, Addr: loopback(n.port),
		Args:       append(jvmArgs(r.heapMB), "-cp", r.classPath, "kafka.Kafka", config),
		StopWithin: 2 * defaultStop,
		Run:        r.Run,
	}
	spec.Ready = func(ctx context.Context) error { return pingKafka(ctx, spec.Addr, n.id) }
	if err := os.MkdirAll(n.dir, 0o755); err != nil {
		return Spec{}, err
	}
	if r.secure != nil {
		spec.SecureAddr = loopback(n.securePort)
		more, err := r.secure.install(n.dir)
		if err != nil {
			return Spec{}, err
		}
		lines = append(lines, more...)
	}
	lines = append(append(lines, r.properties...), "")
	if err := os.WriteFile(config, []byte(strings.Join(lines, "\n")), 0o600); err != nil { // a password may be in it
		return Spec{}, err
	}
	if fileExists(filepath.Join(data, "meta.properties")) {
		return spec, nil
	}
	return spec, r.format(ctx, config)
}

// kafkaRuntime returns java and the class path of broker, tools and Connect.
// The list is sorted, so it is the same at each start.
func kafkaRuntime(ctx context.Context, run Run) (java, classPath string, err error) {
	if err := Need(ctx, run, Java); err != nil {
		return "", "", err
	}
	if java, err = javaPath(); err != nil {
		return "", "", err
	}
	lib, err := jars(ctx, kafkaJars(), run)
	if err != nil {
		return "", "", err
	}
	classPath, err = jarList(lib)
	return java, classPath, err
}

// jarList is the class path of a directory of jars. Wildcards would do for Java
// itself, but not for its compiler.
func jarList(lib string) (string, error) {
	paths, err := filepath.Glob(filepath.Join(lib, "*.jar"))
	return strings.Join(paths, string(os.PathListSeparator)), err
}

// jvmArgs are for a server that starts often and lives briefly: the quick
// compiler only, and the collector with the least threads.
func jvmArgs(heapMB int) []string {
	return []string{
		"-Xms64m", fmt.Sprintf("-Xmx%dm", heapMB), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Djava.awt.headless=true",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true",
		"-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
	}
}

func (r *kafkaRun) kafkaProperties(n kafkaNode, data string) []string {
	addr, controller := loopback(n.port), loopback(n.controllerPort)
	listeners, advertised := "PLAINTEXT://"+addr+",CONTROLLER://"+controller, "PLAINTEXT://"+addr
	protocols := "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
	if r.secure != nil {
		secure := ",SECURE://" + loopback(n.securePort)
		listeners, advertised = listeners+secure, advertised+secure
		protocols += ",SECURE:" + r.secure.protocol()
	}
	replicas, inSync := strconv.Itoa(r.replicas), strconv.Itoa(max(1, r.replicas-1))
	return []string{
		"process.roles=broker,controller",
		"node.id=" + strconv.Itoa(n.id),
		"controller.quorum.voters=" + r.voters,
		"listeners=" + listeners,
		"advertised.listeners=" + advertised,
		"controller.listener.names=CONTROLLER",
		"inter.broker.listener.name=PLAINTEXT",
		"listener.security.protocol.map=" + protocols,
		"log.dirs=" + data,
		"auto.create.topics.enable=false",
		"num.partitions=1",
		"default.replication.factor=" + replicas,
		"min.insync.replicas=" + inSync,
		"offsets.topic.num.partitions=3",
		"offsets.topic.replication.factor=" + replicas,
		"transaction.state.log.num.partitions=3",
		"transaction.state.log.replication.factor=" + replicas,
		"transaction.state.log.min.isr=" + inSync,
		"share.coordinator.state.topic.num.partitions=3",
		"share.coordinator.state.topic.replication.factor=" + replicas,
		"share.coordinator.state.topic.min.isr=" + inSync,
		// A node that was killed is let back, or given up, after 2 s, not 9.
		"broker.session.timeout.ms=2000",
		"broker.heartbeat.interval.ms=400",
		"group.initial.rebalance.delay.ms=0",
		"log.cleaner.backoff.ms=1000",
		"log.cleaner.dedupe.buffer.size=8388608",
		"log.retention.check.interval.ms=5000",
	}
}

// format makes an empty log directory. Every estate is its own cluster; their
// ids may be equal.
func (r *kafkaRun) format(ctx context.Context, config string) error {
	const clusterID = "cGVuc3RvY2stbG9jYWwtMQ"
	args := append(jvmArgs(256), "-cp", r.classPath, "kafka.tools.StorageTool", "format", "-t", clusterID, "-c", config)
	args = append(args, r.secure.scram()...)
	if out, err := exec.CommandContext(ctx, r.java, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("format: %w: %s", err, out)
	}
	return nil
}

// pingKafka asks for the metadata of no topic and wants node id itself in the
// answer: it does not list itself before it is registered and unfenced.
func pingKafka(ctx context.Context, addr string, id int) error {
	conn, err := dial(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	const metadata, version, correlation = 3, 1, 7
	body := binary.BigEndian.AppendUint16(nil, metadata)
	body = binary.BigEndian.AppendUint16(body, version)
	body = binary.BigEndian.AppendUint32(body, correlation)
	body = binary.BigEndian.AppendUint16(body, 0xffff) // no client id
	body = binary.BigEndian.AppendUint32(body, 0)      // no topics
	if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)); err != nil {
		return err
	}
	r := bufio.NewReader(conn)
	number := func() int32 { // and the first error
		var n int32
		if err == nil {
			err = binary.Read(r, binary.BigEndian, &n)
		}
		return n
	}
	text := func() {
		var n int16
		if err == nil {
			err = binary.Read(r, binary.BigEndian, &n)
		}
		if err == nil && n > 0 {
			_, err = r.Discard(int(n))
		}
	}
	_ = number() // size
	if got := number(); err == nil && got != correlation {
		return errors.New("metadata: the answer is to another question")
	}
	for range number() {
		node := number()
		text() // host
		_ = number()
		text() // rack
		if err == nil && int(node) == id {
			return nil
		}
	}
	return cmp.Or(err, fmt.Errorf("metadata: the cluster does not list node %d yet", id))
}
