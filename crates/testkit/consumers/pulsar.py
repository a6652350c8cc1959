"""Prepares and reads a topic on Pulsar.

Usage: pulsar.py prepare URL TOPIC: makes a shared subscription, so that messages are kept for it
       pulsar.py read URL TOPIC: prints all that the topic holds, one JSON object a line
"""

import base64
import json
import sys

import pulsar

CONTENT_TYPE = "content-type"
TIMEOUT_SECONDS = 30
# A reader was seen to get nothing of what the server said was there; then another one is made.
READ_TIMEOUT_SECONDS = 10
READERS = 3


def prepare(client, topic):
    client.subscribe(
        topic,
        "keeper",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
    ).close()


def is_empty(reader):
    try:
        return not reader.has_message_available()
    except pulsar.UnknownError:
        return True  # the server's answer to a question about the last message where there is none


def read(client, topic):
    for left in reversed(range(READERS)):
        try:
            print("".join(line + "\n" for line in messages(client, topic)), end="")
            return
        except pulsar.Timeout:
            if left == 0:
                raise


def messages(client, topic):
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    lines = []
    while not is_empty(reader):
        message = reader.read_next(READ_TIMEOUT_SECONDS * 1000)
        properties = message.properties()
        lines.append(
            json.dumps(
                {
                    "topic": message.topic_name().rsplit("/", 1)[-1],
                    "key": message.partition_key() or None,
                    "headers": [[n, v] for n, v in properties.items() if n != CONTENT_TYPE],
                    "content_type": properties.get(CONTENT_TYPE),
                    "body": base64.b64encode(message.data()).decode(),
                }
            )
        )
    reader.close()
    return lines


client = pulsar.Client(
    sys.argv[2],
    operation_timeout_seconds=TIMEOUT_SECONDS,
    logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"),
)
try:
    {"prepare": prepare, "read": read}[sys.argv[1]](client, sys.argv[3])
finally:
    client.close()
