"""Reads Redis streams, and makes clusters of private servers.

Usage: redis.py read URL TOPIC…: prints all that the streams hold, one JSON object a line
       redis.py form URL…: makes one cluster of these servers, unless they are one already
       redis.py run URL COMMAND ARGUMENT…: runs one command, prints nothing
"""

import base64
import json
import sys
import time

import redis


def read(url, *topics):
    client = redis.Redis.from_url(url)
    if client.info("cluster")["cluster_enabled"]:
        client = redis.RedisCluster.from_url(url)
    for topic in topics:
        for _, fields in client.xrange(topic):
            message = {
                "topic": topic,
                "key": fields[b"key"].decode() if b"key" in fields else None,
                "headers": list(json.loads(fields[b"headers"]).items()),
                "content_type": fields[b"content-type"].decode(),
                "body": base64.b64encode(fields[b"payload"]).decode(),
            }
            print(json.dumps(message))


def form(*urls):
    nodes = [redis.Redis.from_url(url) for url in urls]
    if nodes[0].execute_command("CLUSTER INFO")["cluster_slots_assigned"] == "0":
        share = 16384 // len(nodes)
        for n, node in enumerate(nodes):
            last = 16383 if node is nodes[-1] else (n + 1) * share - 1
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", n * share, last)
            port = nodes[0].connection_pool.connection_kwargs["port"]
            node.execute_command("CLUSTER", "MEET", "127.0.0.1", port)
    deadline = time.monotonic() + 30
    for node in nodes:
        while True:
            info = node.execute_command("CLUSTER INFO")
            if info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == len(nodes):
                break
            if time.monotonic() > deadline:
                raise SystemExit(f"no cluster: {info}")
            time.sleep(0.05)


def run(url, *command):
    redis.Redis.from_url(url).execute_command(*command)


{"read": read, "form": form, "run": run}[sys.argv[1]](*sys.argv[2:])
