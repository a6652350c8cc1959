"""Reads a Redis stream.

Usage: redis.py read URL TOPIC: prints all that the stream holds, one JSON object a line
"""

import base64
import json
import sys

import redis

_, url, topic = sys.argv[1:]
client = redis.Redis.from_url(url, ssl_cert_reqs=None) if url.startswith("rediss") else redis.Redis.from_url(url)
for _, fields in client.xrange(topic):
    headers = json.loads(fields[b"headers"]) if b"headers" in fields else {}
    print(
        json.dumps(
            {
                "topic": topic,
                "key": fields[b"key"].decode() if b"key" in fields else None,
                "headers": list(headers.items()),
                "content_type": fields[b"content-type"].decode(),
                "body": base64.b64encode(fields[b"payload"]).decode(),
            }
        )
    )
