"""Prepares and reads a topic on Kafka.

Usage: kafka.py prepare SERVERS TOPIC [PARTITIONS]: makes the topic
       kafka.py read SERVERS TOPIC: prints all that the topic holds, one JSON object a line
"""

import base64
import heapq
import json
import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

CONTENT_TYPE = "content-type"
QUIET = {"log_level": 0}
TIMEOUT = 30


def prepare(servers, topic, partitions=4):
    admin = AdminClient({"bootstrap.servers": servers, **QUIET})
    topics = [NewTopic(topic, num_partitions=int(partitions), replication_factor=1)]
    for future in admin.create_topics(topics, operation_timeout=TIMEOUT).values():
        future.result(TIMEOUT)


def messages(consumer, topic, partition):
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    offset = 0
    while offset < end:
        message = consumer.poll(TIMEOUT)
        if message is None or message.error():
            raise SystemExit(f"partition {partition} of {topic} stops at {offset} of {end}: {message}")
        offset = message.offset() + 1
        yield message


def read(servers, topic):
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False, **QUIET}
    )
    partitions = consumer.list_topics(topic, timeout=TIMEOUT).topics[topic].partitions
    lists = [list(messages(consumer, topic, partition)) for partition in partitions]
    # Each partition keeps its order, whatever its timestamps say.
    for message in heapq.merge(*lists, key=lambda message: message.timestamp()[1]):
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
