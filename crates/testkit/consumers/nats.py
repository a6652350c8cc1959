"""Prepares and reads a topic on NATS JetStream.

Usage: nats.py prepare URL TOPIC: makes a stream of that name that listens to that subject
       nats.py read URL TOPIC: prints all that the stream holds, one JSON object a line
"""

import asyncio
import base64
import json
import sys

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

CONTENT_TYPE = "content-type"


async def prepare(js, topic):
    await js.add_stream(name=topic, subjects=[topic])


async def read(js, topic):
    left = (await js.stream_info(topic)).state.messages
    consumer = await js.pull_subscribe(
        topic,
        stream=topic,
        config=ConsumerConfig(deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.NONE),
    )
    while left > 0:
        for message in await consumer.fetch(min(left, 500), timeout=10):
            left -= 1
            headers = message.headers or {}
            content_type = next((v for n, v in headers.items() if n.lower() == CONTENT_TYPE), None)
            print(
                json.dumps(
                    {
                        "topic": message.subject,
                        "headers": [[n, v] for n, v in headers.items() if n.lower() != CONTENT_TYPE],
                        "content_type": content_type,
                        "body": base64.b64encode(message.data).decode(),
                    }
                )
            )


async def main(command, url, topic):
    client = await nats.connect(url, max_reconnect_attempts=3)
    try:
        await {"prepare": prepare, "read": read}[command](client.jetstream(), topic)
    finally:
        await client.close()


asyncio.run(main(*sys.argv[1:]))
