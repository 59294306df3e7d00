#!/usr/bin/env python3
"""Reads a topic of Penstock and prints each record as one line of JSON.

It knows nothing of Penstock but what is given to it: brokers, a schema
registry, and a .avsc file, the schema that this reader was written for. README.md
says what else a subscriber has to know.

Needs kafka-python and avro (Debian: python3-kafka python3-avro python3-snappy
python3-lz4 python3-zstandard).
"""

import argparse
import datetime
import io
import json
import os
import struct
import sys
import time
import urllib.error
import urllib.request
import uuid

import avro.errors
import avro.io
import avro.schema
import kafka
import kafka.errors


class Reader(avro.io.DatumReader):
    """Resolves what a writer wrote to what this reader knows.

    The avro library drops fields that this reader does not know and fills in
    the defaults of those that the writer did not, but refuses a symbol that is
    newer than this reader. Avro's answer to that is the enum's default, which
    in Penstock's schemas is always UNKNOWN.
    """

    def read_enum(self, writers_schema, readers_schema, decoder):
        symbol = writers_schema.symbols[decoder.read_int()]
        if symbol in readers_schema.symbols:
            return symbol
        return readers_schema.props["default"]

    def read_fixed(self, writers_schema, readers_schema, decoder):
        data = super().read_fixed(writers_schema, readers_schema, decoder)
        return uuid.UUID(bytes=data) if writers_schema.name == "Uuid" else data


class Decoder:
    """Decodes values in Confluent framing: 0x00, the schema's id in 4 bytes, Avro."""

    def __init__(self, registry, reader_schema=None):
        self.registry = registry.rstrip("/")
        self.reader_schema = reader_schema
        self.readers = {}  # by the id of the writer's schema

    def decode(self, value):
        if len(value) < 5 or value[0] != 0:
            raise ValueError("the value is not in Confluent framing")
        (schema_id,) = struct.unpack(">I", value[1:5])
        if schema_id not in self.readers:
            writer = avro.schema.parse(self.schema(schema_id))
            self.readers[schema_id] = Reader(writer, self.reader_schema or writer)
        body = io.BytesIO(value[5:])
        record = self.readers[schema_id].read(avro.io.BinaryDecoder(body))
        if body.read(1):
            raise ValueError("bytes are left over behind the record")
        return schema_id, record

    def schema(self, schema_id):
        """Asks the registry, patiently: one that is away says nothing of the record."""
        url = f"{self.registry}/schemas/ids/{schema_id}"
        for wait in (1, 2, 4, 8, None):
            try:
                with urllib.request.urlopen(url, timeout=10) as answer:
                    return json.load(answer)["schema"]
            except urllib.error.HTTPError as e:
                if e.code == 404:
                    raise ValueError(f"the registry does not have schema {schema_id}") from e
                reason = e
            except OSError as e:
                reason = e
            if wait is None:
                sys.exit(f"{url}: {reason}")
            time.sleep(wait)


class Streams:
    """Recognises repeats and losses of usage.v1, with one number per stream.

    A gateway numbers its events from 1 within a stream, and a stream's events
    lie in one partition, in order.
    """

    def __init__(self):
        self.last = {}
        self.repeats = self.missing = 0

    def is_repeat(self, event):
        stream, sequence = event["stream_id"], event["sequence"]
        last = self.last.get(stream, sequence - 1)  # what came before may have expired, and is not missed
        if sequence <= last:
            self.repeats += 1
            return True
        self.missing += sequence - last - 1
        self.last[stream] = sequence
        return False


class Announced:
    """Recognises repeats of quota-events.v1 by their id.

    Whoever reads only what is committed sees each once. A library that cannot
    (kafka-python up to 2.0) also sees what a writer gave up and wrote again.
    """

    def __init__(self):
        self.seen = set()
        self.repeats = 0

    def is_repeat(self, event):
        if event["event_id"] in self.seen:
            self.repeats += 1
            return True
        self.seen.add(event["event_id"])
        return False


def is_marker(record):
    """Reports a transaction's end, which kafka-python up to 2.0 hands out as a record.

    Its key begins with two zero bytes; keys of Penstock are text.
    """
    return record.key is not None and record.key[:2] == b"\0\0"


def plain(value):
    """Turns what JSON does not have into text."""
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"no JSON for {type(value)}")


def shown(record, decoder):
    """Returns the JSON object of a Kafka record. A tombstone's value is null."""
    line = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "key": None if record.key is None else record.key.decode(),
        "headers": {name: value.decode() for name, value in record.headers},
        "schema_id": None,
        "value": None,
    }
    if record.value is not None:
        line["schema_id"], line["value"] = decoder.decode(record.value)
    return line


def to_the_end(args):
    """Yields what the topic holds now, partition by partition, then ends."""
    consumer = connect(args)
    partitions = [kafka.TopicPartition(args.topic, p) for p in sorted(consumer.partitions_for_topic(args.topic) or ())]
    if not partitions:
        sys.exit(f"{args.brokers}: there is no topic {args.topic}")
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    end = consumer.end_offsets(partitions)
    while any(consumer.position(p) < end[p] for p in partitions):
        for records in consumer.poll(timeout_ms=200).values():
            yield from records
    consumer.close()


def for_ever(args):
    """Yields what the topic holds and what comes, as a member of a group.

    A batch counts as read once all of it was printed, so after a crash it comes
    again: at-least-once.
    """
    consumer = connect(args, group_id=args.group, enable_auto_commit=False, auto_offset_reset="earliest")
    consumer.subscribe([args.topic])
    while True:
        batches = consumer.poll(timeout_ms=1000)
        for records in batches.values():
            yield from records
        if batches:
            consumer.commit()


def connect(args, **more):
    if "isolation_level" in kafka.KafkaConsumer.DEFAULT_CONFIG:
        more["isolation_level"] = "read_committed"
    try:
        return kafka.KafkaConsumer(bootstrap_servers=args.brokers.split(","), **more)
    except kafka.errors.NoBrokersAvailable:
        sys.exit(f"{args.brokers}: no broker answers")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--brokers", default=os.environ.get("KAFKA_BROKERS"), help="host:port, comma-separated; default $KAFKA_BROKERS")
    parser.add_argument("--registry", default=os.environ.get("SCHEMA_REGISTRY_URL"), help="URL; default $SCHEMA_REGISTRY_URL")
    parser.add_argument("--topic", required=True, help="rules.v1, usage.v1 or quota-events.v1")
    parser.add_argument("--schema", help=".avsc file of this reader; without it records show whatever their writers wrote")
    parser.add_argument("--group", help="go on for ever as a member of this consumer group; without it end at the end of the topic")
    args = parser.parse_args()
    if not args.brokers or not args.registry:
        parser.error("--brokers and --registry are required")

    schema = None
    if args.schema:
        with open(args.schema, encoding="utf-8") as file:
            schema = avro.schema.parse(file.read())
    decoder, streams, announced = Decoder(args.registry, schema), Streams(), Announced()
    read = poison = 0
    for record in for_ever(args) if args.group else to_the_end(args):
        if is_marker(record):
            continue
        read += 1
        try:
            line = shown(record, decoder)
            if line["value"] and "stream_id" in line["value"]:
                line["repeat"] = streams.is_repeat(line["value"])
            elif line["value"] and "arm" in line["value"]:
                line["repeat"] = announced.is_repeat(line["value"])
        except (ValueError, LookupError, OverflowError, avro.errors.AvroException) as e:
            poison += 1
            print(f"{record.topic}/{record.partition}/{record.offset}: set aside: {e}", file=sys.stderr)
            continue
        print(json.dumps(line, default=plain, ensure_ascii=False), flush=True)
    print(f"{args.topic}: {read} records, {poison} set aside, {streams.repeats + announced.repeats} repeats, {streams.missing} missing", file=sys.stderr)
    sys.exit(1 if poison else 0)


if __name__ == "__main__":
    main()
