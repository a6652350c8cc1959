"""Subscribes to a topic of an MQTT 5 server and reads what was kept for the subscriber.

Usage: mqtt.py prepare URL TOPIC: subscribes, with a session that outlives the connection
       mqtt.py read URL TOPIC: prints all that the server has kept since, one JSON object a line; then it is gone
"""

import base64
import json
import sys
from urllib.parse import urlsplit

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

END = "posthaste-end-of-reading"

command, url, topic = sys.argv[1:]
parts = urlsplit(url)
failures = []


def properties(packet, **values):
    made = Properties(packet)
    for name, value in values.items():
        setattr(made, name, value)
    return made


def done(failure=None):
    if failure:
        failures.append(failure)
    client.disconnect()


def on_connect(client, _, flags, reason, __):
    if reason.is_failure:
        done(f"not connected: {reason}")
    elif command == "prepare":
        client.subscribe(topic, options=mqtt.SubscribeOptions(qos=2))
    elif not flags.session_present:
        done("the server has forgotten the subscription")
    else:
        # Behind all that was kept: what comes after it is of the next reading.
        end = properties(PacketTypes.PUBLISH, UserProperty=[(END, "")])
        client.publish(topic, b"", qos=2, properties=end)


def on_subscribe(client, _, __, reasons, ___):
    done(next((str(reason) for reason in reasons if reason.is_failure), None))


def on_message(client, _, message):
    headers = getattr(message.properties, "UserProperty", [])
    if any(name == END for name, _ in headers):
        return done()
    print(
        json.dumps(
            {
                "topic": message.topic,
                "headers": headers,
                "content_type": getattr(message.properties, "ContentType", None),
                "body": base64.b64encode(message.payload).decode(),
                "qos": message.qos,
                "retain": message.retain,
                "expiry": getattr(message.properties, "MessageExpiryInterval", None),
            }
        )
    )


client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=f"reader-{topic}", protocol=mqtt.MQTTv5)
client.username_pw_set(parts.username, parts.password)
client.on_connect, client.on_subscribe, client.on_message = on_connect, on_subscribe, on_message
client.connect(
    parts.hostname,
    parts.port,
    clean_start=False,  # Mosquitto writes no other sessions down
    properties=properties(PacketTypes.CONNECT, SessionExpiryInterval=3600, ReceiveMaximum=1000),
)
client.loop_forever()
if failures:
    sys.exit("; ".join(failures))
