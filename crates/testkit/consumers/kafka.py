"""Prepares and reads a topic on Kafka.

Usage: kafka.py prepare SERVERS TOPIC [PARTITIONS]: makes the topic
       kafka.py read SERVERS TOPIC: prints all that the topic holds, one JSON object a line

SERVERS may be followed by more settings of the client: HOST:PORT?security.protocol=ssl&ssl.ca.location=FILE
"""

import base64
import heapq
import json
import sys
from urllib.parse import parse_qsl

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

CONTENT_TYPE = "content-type"
QUIET = {"log_level": 0}
TIMEOUT = 30
# Once something has come.
SILENCE = 10


def client(servers):
    hosts, _, settings = servers.partition("?")
    return {"bootstrap.servers": hosts, **QUIET, **dict(parse_qsl(settings))}


def prepare(servers, topic, partitions=4):
    admin = AdminClient(client(servers))
    topics = [NewTopic(topic, num_partitions=int(partitions), replication_factor=1)]
    for future in admin.create_topics(topics, operation_timeout=TIMEOUT).values():
        future.result(TIMEOUT)


def read(servers, topic):
    consumer = Consumer(
        {
            **client(servers),
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    partitions = consumer.list_topics(topic, timeout=TIMEOUT).topics[topic].partitions
    lists = {partition: [] for partition in partitions}
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    ended = set()
    # Up to the end that comes with the messages: not every server tells it right when asked for it alone.
    while ended != set(partitions):
        any_yet = any(lists.values())
        message = consumer.poll(SILENCE if any_yet else TIMEOUT)
        if message is None and any_yet:
            # A server that was killed while it wrote may never tell the end of a partition. What
            # should be there and is not is missed by whoever asked for it.
            break
        if message is None:
            raise SystemExit(f"{topic} does not end")
        if message.error() is None:
            lists[message.partition()].append(message)
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        else:
            raise SystemExit(f"{topic} cannot be read: {message.error()}")
    # Each partition keeps its order, whatever its timestamps say.
    for message in heapq.merge(*lists.values(), key=lambda message: message.timestamp()[1]):
        headers = [(name, value.decode()) for name, value in message.headers() or []]
        key = message.key()
        print(
            json.dumps(
                {
                    "topic": message.topic(),
                    "key": None if key is None else key.decode(),
                    "headers": [pair for pair in headers if pair[0] != CONTENT_TYPE],
                    "content_type": dict(headers).get(CONTENT_TYPE),
                    # A tombstone has no value at all, and fails here.
                    "body": base64.b64encode(message.value()).decode(),
                }
            )
        )
    consumer.close()


{"prepare": prepare, "read": read}[sys.argv[1]](*sys.argv[2:])
