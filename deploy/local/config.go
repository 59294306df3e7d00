package main

import (
	"errors"
	"fmt"
	"strconv"

	"penstock.dev/deploy/local/estate"
)

// A config is what the variables of make say.
type config struct {
	estate    estate.Options
	portBase  bool // PORT_BASE was given
	wipe      bool // WIPE=1
	unguarded bool // CI=1: nobody watches, so the demo ends by itself
}

func parseConfig(getenv func(string) string) (config, error) {
	var faults []error
	number := func(name string, otherwise int) int {
		text := getenv(name)
		if text == "" {
			return otherwise
		}
		n, err := strconv.Atoi(text)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s=%s: want a whole number", name, text))
		}
		return n
	}
	flag := func(name string, otherwise bool) bool {
		switch text := getenv(name); text {
		case "":
			return otherwise
		case "1", "true", "yes":
			return true
		case "0", "false", "no":
			return false
		default:
			faults = append(faults, fmt.Errorf("%s=%s: want 1 or 0", name, text))
			return otherwise
		}
	}
	c := config{
		estate: estate.Options{
			PortBase: number("PORT_BASE", estate.DefaultPortBase), Gateways: number("GATEWAYS", 1),
			Samples: flag("SAMPLES", true), Kafka: estate.Embedded,
			RedisURL: getenv("REDIS_URL"), DatabaseURL: getenv("DATABASE_URL"),
			KafkaBrokers: getenv("KAFKA_BROKERS"), SchemaRegistryURL: getenv("SCHEMA_REGISTRY_URL"),
			ElasticsearchURL: getenv("ELASTICSEARCH_URL"), Search: estate.WithElasticsearch,
		},
		portBase: getenv("PORT_BASE") != "", wipe: flag("WIPE", false), unguarded: flag("CI", false),
	}
	if kafka := getenv("KAFKA"); kafka != "" {
		c.estate.Kafka = kafka
	}
	switch open, some := flag("OPENSEARCH", false), flag("SEARCH", true); {
	case open && !some:
		faults = append(faults, errors.New("OPENSEARCH=1 and SEARCH=0 contradict each other"))
	case open:
		c.estate.Search = estate.WithOpenSearch
	case !some:
		c.estate.Search = estate.WithoutSearch
	}
	return c, errors.Join(append(faults, c.estate.Validate())...)
}
