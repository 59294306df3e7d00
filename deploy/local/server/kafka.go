package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// KafkaOptions configures StartKafka.
type KafkaOptions struct {
	Port           int      // 0 picks a free one
	ControllerPort int      // 0 picks a free one
	HeapMB         int      // 0 means 512
	Properties     []string // further server properties, name=value, last
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
	java, classPath, err := kafkaRuntime(ctx, o.Run)
	if err != nil {
		return Spec{}, err
	}
	port, err1 := orFree(ctx, o.Port, dir, o.Run, addrOf)
	controller, err2 := orFree(ctx, o.ControllerPort, dir, Run{}, nil)
	dir, err3 := filepath.Abs(dir)
	if err := errors.Join(err1, err2, err3); err != nil {
		return Spec{}, err
	}
	addr := loopback(port)
	config := filepath.Join(dir, "server.properties")
	data := filepath.Join(dir, "data")
	properties := kafkaProperties(addr, loopback(controller), data) + strings.Join(append(o.Properties, ""), "\n")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(config, []byte(properties), 0o644)); err != nil {
		return Spec{}, err
	}
	if !fileExists(filepath.Join(data, "meta.properties")) {
		if err := formatKafka(ctx, java, classPath, config); err != nil {
			return Spec{}, err
		}
	}
	heap := o.HeapMB
	if heap == 0 {
		heap = 512
	}
	args := append(jvmArgs(heap), "-cp", classPath, "kafka.Kafka", config)
	return Spec{
		Name: "kafka", Path: java, Args: args, Dir: dir, Addr: addr,
		Ready:      func(ctx context.Context) error { return pingKafka(ctx, addr) },
		StopWithin: 2 * defaultStop,
		Run:        o.Run,
	}, nil
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

func kafkaProperties(addr, controller, data string) string {
	return strings.Join([]string{
		"process.roles=broker,controller",
		"node.id=1",
		"controller.quorum.voters=1@" + controller,
		"listeners=PLAINTEXT://" + addr + ",CONTROLLER://" + controller,
		"advertised.listeners=PLAINTEXT://" + addr,
		"controller.listener.names=CONTROLLER",
		"inter.broker.listener.name=PLAINTEXT",
		"listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
		"log.dirs=" + data,
		"auto.create.topics.enable=false",
		"num.partitions=1",
		"default.replication.factor=1",
		"min.insync.replicas=1",
		"offsets.topic.num.partitions=3",
		"offsets.topic.replication.factor=1",
		"transaction.state.log.num.partitions=3",
		"transaction.state.log.replication.factor=1",
		"transaction.state.log.min.isr=1",
		"share.coordinator.state.topic.num.partitions=3",
		"share.coordinator.state.topic.replication.factor=1",
		"share.coordinator.state.topic.min.isr=1",
		// A node that was killed is let back after 2 s, not 9.
		"broker.session.timeout.ms=2000",
		"broker.heartbeat.interval.ms=400",
		"group.initial.rebalance.delay.ms=0",
		"log.cleaner.backoff.ms=1000",
		"log.cleaner.dedupe.buffer.size=8388608",
		"log.retention.check.interval.ms=5000",
		"",
	}, "\n")
}

// formatKafka makes an empty log directory. Every estate is its own cluster;
// their ids may be equal.
func formatKafka(ctx context.Context, java, classPath, config string) error {
	const clusterID = "cGVuc3RvY2stbG9jYWwtMQ"
	args := append(jvmArgs(256), "-cp", classPath, "kafka.tools.StorageTool", "format", "-t", clusterID, "-c", config)
	if out, err := exec.CommandContext(ctx, java, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("format: %w: %s", err, out)
	}
	return nil
}

// pingKafka asks for the metadata of no topic and wants the broker itself in
// the answer: it does not list itself before it is registered and unfenced.
func pingKafka(ctx context.Context, addr string) error {
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
	var head [12]byte // size, correlation, number of brokers
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return err
	}
	if binary.BigEndian.Uint32(head[4:]) != correlation {
		return errors.New("metadata: the answer is to another question")
	}
	if n := int32(binary.BigEndian.Uint32(head[8:])); n < 1 {
		return errors.New("metadata: the cluster has no broker yet")
	}
	return nil
}
