package system

import (
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// KafkaOption says where Kafka is.
func (s *System) KafkaOption() kgo.Opt {
	return kgo.SeedBrokers(strings.Split(s.Env["KAFKA_BROKERS"], ",")...)
}
