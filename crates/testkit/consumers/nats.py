"""Prepares and reads a topic on NATS JetStream.

Usage: nats.py prepare URL TOPIC [LIMIT]: makes a stream of that name that listens to that subject and, with
           a limit, refuses more messages; it allows atomic batches
       nats.py read URL STREAM [SUBJECT]: prints all that the stream holds, one JSON object a line
"""

import asyncio
import base64
import json
import sys

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

CONTENT_TYPE = "content-type"


async def prepare(client, topic, limit=-1):
    # By hand: the client does not know allow_batched.
    stream = {
        "name": topic,
        "subjects": [topic],
        "retention": "limits",
        "storage": "file",
        "max_msgs": int(limit),
        "discard": "new" if limit != -1 else "old",
        "allow_batched": True,
    }
    answer = await client.request(f"$JS.API.STREAM.CREATE.{topic}", json.dumps(stream).encode(), timeout=10)
    error = json.loads(answer.data).get("error")
    if error:
        raise SystemExit(f"the stream cannot be made: {error}")


async def read(client, stream, subject=None):
    js = client.jetstream()
    left = (await js.stream_info(stream)).state.messages
    consumer = await js.pull_subscribe(
        subject or stream,
        stream=stream,
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


async def main(command, url, *arguments):
    client = await nats.connect(url, max_reconnect_attempts=3)
    try:
        await {"prepare": prepare, "read": read}[command](client, *arguments)
    finally:
        await client.close()


asyncio.run(main(*sys.argv[1:]))
