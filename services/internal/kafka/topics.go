package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// A Topic is what EnsureTopics makes sure of.
type Topic struct {
	Name        string
	Partitions  int32             // 0 leaves it to the broker
	Replication int16             // 0 leaves it to the broker
	Config      map[string]string // e.g. "cleanup.policy": "compact"; what is not named keeps the broker's default
}

// How long one attempt to reach the cluster may take, and the waits between.
const (
	attempt    = 5 * time.Second
	backoffMin = 250 * time.Millisecond
	backoffMax = 2 * time.Second
)

// EnsureTopics creates the topics that are missing and returns when they can be
// used. A topic that exists is left as it is; when it differs from what was
// asked for, that is logged, because changing it is the operator's decision. It
// waits for brokers that are away until ctx ends, and returns at once what
// waiting cannot mend.
func (c *Client) EnsureTopics(ctx context.Context, topics []Topic) error {
	for _, t := range topics {
		if err := c.ensureTopic(ctx, t); err != nil {
			return fmt.Errorf("topic %s: %w", t.Name, err)
		}
	}
	return nil
}

func (c *Client) ensureTopic(ctx context.Context, t Topic) error {
	wait := backoffMin
	for {
		err := c.createTopic(ctx, t)
		switch {
		case err == nil:
			c.log.Info("topic created", "topic", t.Name, "partitions", t.Partitions)
			return c.awaitTopic(ctx, t.Name)
		case errors.Is(err, kerr.TopicAlreadyExists):
			c.compareTopic(ctx, t)
			return nil
		case ctx.Err() != nil:
			return errors.Join(cause(ctx), err)
		case isKafkaErr(err) && !kerr.IsRetriable(err) && !refusedLogin(translate(err)):
			return translate(err)
		}
		c.kgoLog.warn(t.Name, "topic cannot be created yet", "error", c.why(err).Error())
		if pause(ctx, wait) != nil {
			return errors.Join(cause(ctx), err)
		}
		wait = min(2*wait, backoffMax)
	}
}

// awaitTopic waits until a topic just created has leaders: brokers hear of it a
// little after the one that created it.
func (c *Client) awaitTopic(ctx context.Context, topic string) error {
	for {
		md, err := c.metadata(ctx, topic)
		led := err == nil && md.Err == nil && len(md.Partitions) > 0
		for _, p := range md.Partitions {
			led = led && p.Err == nil && p.Leader >= 0
		}
		if led {
			return nil
		}
		if err := pause(ctx, backoffMin); err != nil {
			return err
		}
	}
}

// metadata asks for what is known of one topic.
func (c *Client) metadata(ctx context.Context, topic string) (kadm.TopicDetail, error) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	md, err := c.admin.Metadata(ctx, topic)
	return md.Topics[topic], err
}

func (c *Client) createTopic(ctx context.Context, t Topic) error {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	partitions, replication := t.Partitions, t.Replication
	if partitions == 0 {
		partitions = -1
	}
	if replication == 0 {
		replication = -1
	}
	config := make(map[string]*string, len(t.Config))
	for k, v := range t.Config {
		config[k] = &v
	}
	resp, err := c.admin.CreateTopic(ctx, partitions, replication, config, t.Name)
	if err == nil {
		err = resp.Err
	}
	if err != nil && resp.ErrMessage != "" {
		return fmt.Errorf("%w (%s)", err, resp.ErrMessage)
	}
	return err
}

// compareTopic logs in what an existing topic differs from what was asked for.
func (c *Client) compareTopic(ctx context.Context, t Topic) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	var differs []string
	md, err := c.metadata(ctx, t.Name)
	if got := len(md.Partitions); err == nil && t.Partitions > 0 && got != int(t.Partitions) {
		differs = append(differs, fmt.Sprintf("partitions is %d, want %d", got, t.Partitions))
	}
	if len(t.Config) > 0 && err == nil {
		var configs kadm.ResourceConfigs
		if configs, err = c.admin.DescribeTopicConfigs(ctx, t.Name); err == nil {
			differs = append(differs, configDiff(configs, t)...)
		}
	}
	switch {
	case err != nil:
		c.log.Info("topic exists; could not compare it", "topic", t.Name, "error", err.Error())
	case len(differs) > 0:
		c.log.Warn("topic exists and differs from what this service would create", "topic", t.Name, "differs", strings.Join(differs, "; "))
	}
}

// configDiff names the settings of t that the broker holds otherwise.
func configDiff(configs kadm.ResourceConfigs, t Topic) []string {
	got := make(map[string]string)
	for _, rc := range configs {
		for _, c := range rc.Configs {
			got[c.Key] = c.MaybeValue()
		}
	}
	var differs []string
	for _, k := range slices.Sorted(maps.Keys(t.Config)) {
		if v, ok := got[k]; !ok || v != t.Config[k] {
			differs = append(differs, fmt.Sprintf("%s is %q, want %q", k, v, t.Config[k]))
		}
	}
	return differs
}

// Partitions returns how many partitions the topic has, or ErrNoTopic.
func (c *Client) Partitions(ctx context.Context, topic string) (int32, error) {
	md, err := c.metadata(ctx, topic)
	if err == nil {
		err = md.Err
	}
	if err != nil {
		return 0, fmt.Errorf("partitions of %s: %w", topic, translate(err))
	}
	return int32(len(md.Partitions)), nil
}

// topicIDs returns the identities of topics, or ErrNoTopic when one is missing.
func (c *Client) topicIDs(ctx context.Context, topics []string) (map[string]kadm.TopicID, error) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	md, err := c.admin.Metadata(ctx, topics...)
	if err != nil {
		return nil, err
	}
	ids := make(map[string]kadm.TopicID, len(topics))
	for _, topic := range topics {
		detail, ok := md.Topics[topic]
		if !ok {
			detail.Err = kerr.UnknownTopicOrPartition
		}
		if detail.Err != nil {
			return nil, fmt.Errorf("topic %s: %w", topic, translate(detail.Err))
		}
		ids[topic] = detail.ID
	}
	return ids, nil
}

// isKafkaErr reports whether a broker answered with an error, as opposed to not
// answering.
func isKafkaErr(err error) bool {
	var ke *kerr.Error
	return errors.As(err, &ke)
}
