"""Receives what a webhook's test recorded: one JSON object on standard input, a verdict for each on
standard output. Signatures are judged by `standardwebhooks`, CloudEvents are read by `cloudevents`."""

import base64
import json
import sys

from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from standardwebhooks import Webhook, WebhookVerificationError


def signed(secret, headers, body):
    try:
        Webhook(secret).verify(body, headers, json_parse=False)
        return True
    except WebhookVerificationError:
        return False


def cloud_event(headers, body):
    event = from_http_event(HTTPMessage(headers=headers, body=body))
    attributes = {name: str(value) for name, value in event.get_attributes().items()}
    return {"attributes": attributes, "data": event.get_data()}


request = json.load(sys.stdin)
headers = request["headers"]
body = base64.b64decode(request["body"])
verdict = {"signed": [signed(secret, headers, body) for secret in request["secrets"]]}
if request["cloud_event"]:
    verdict["cloud_event"] = cloud_event(headers, body)
json.dump(verdict, sys.stdout, default=lambda data: base64.b64encode(data).decode())
