"""Reads received messages on standard input, one JSON object a line, as CloudEvents.

Usage: cloud_event.py BINDING, which is http, kafka, amqp or rabbitmq for binary mode, or structured.
Prints one JSON object a line: attributes, and the data either as json or as base64.
"""

import base64
import json
import sys

from cloudevents.core.formats.json import JSONFormat

binding = sys.argv[1]


def parse(message):
    headers = {name: value for name, value in message["headers"]}
    body = base64.b64decode(message["body"])
    content_type = message.get("content_type")
    if binding == "structured":
        if not (content_type or "").startswith("application/cloudevents+json"):
            raise SystemExit(f"content type {content_type!r} is not that of a structured event")
        return JSONFormat().read(None, body)
    if binding == "http":
        from cloudevents.core.bindings import http

        headers["content-type"] = content_type
        return http.from_binary(http.HTTPMessage(headers, body), JSONFormat())
    if binding == "kafka":
        from cloudevents.core.bindings import kafka

        headers = {name: value.encode() for name, value in headers.items()}
        headers["content-type"] = content_type.encode()
        key = message.get("key")
        return kafka.from_binary(kafka.KafkaMessage(headers, key and key.encode(), body), JSONFormat())
    if binding == "amqp":
        from cloudevents.core.bindings import amqp

        properties = {"content-type": content_type}
        return amqp.from_binary(amqp.AMQPMessage(properties, headers, body), JSONFormat())
    if binding == "rabbitmq":
        from cloudevents.core.bindings import rabbitmq

        return rabbitmq.from_binary(rabbitmq.RabbitMQMessage(headers, content_type, body), JSONFormat())
    raise SystemExit(f"no binding {binding}")


for line in sys.stdin:
    event = parse(json.loads(line))
    attributes = {
        name: value if isinstance(value, str) else value.isoformat()
        for name, value in event.get_attributes().items()
    }
    data = event.get_data()
    out = {"attributes": attributes}
    if data is None:
        out["base64"] = ""
    elif isinstance(data, bytes):
        out["base64"] = base64.b64encode(data).decode()
    elif isinstance(data, str):
        out["base64"] = base64.b64encode(data.encode()).decode()
    else:
        out["json"] = data
    print(json.dumps(out))
