"""Prepares and reads a queue of RabbitMQ.

Usage: rabbitmq.py prepare URL TOPIC: makes a durable queue of that name
       rabbitmq.py read URL TOPIC: prints all that the queue holds, one JSON object a line; it stays there
"""

import base64
import json
import sys

import pika

command, url, topic = sys.argv[1:]
connection = pika.BlockingConnection(pika.URLParameters(url))
channel = connection.channel()
if command == "prepare":
    channel.queue_declare(topic, durable=True)
else:
    left = channel.queue_declare(topic, passive=True).method.message_count
    while left > 0:
        method, properties, body = channel.basic_get(topic)
        left = method.message_count
        print(
            json.dumps(
                {
                    "topic": method.routing_key,
                    "headers": list((properties.headers or {}).items()),
                    "content_type": properties.content_type,
                    "body": base64.b64encode(body).decode(),
                    "id": properties.message_id,
                    "type": properties.type,
                    "persistent": properties.delivery_mode == 2,
                    "timestamp": properties.timestamp,
                }
            )
        )
# What was not acknowledged goes back to its place.
connection.close()
