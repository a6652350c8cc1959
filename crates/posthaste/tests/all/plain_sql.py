"""Runs a `place_order` of docs/plain-sql.md with the usual driver of its database.

Standard input: JSON with database, url, code and payloads (lists of bytes). Standard output: the ids of the
committed events, one a line.
"""

import json
import sys
import uuid
from urllib.parse import urlsplit


def connect(database, url):
    if database == "sqlite":
        import sqlite3

        return sqlite3.connect(url, timeout=20)
    if database == "postgres":
        import psycopg

        return psycopg.connect(url)
    if database == "postgres through a pooler":
        import psycopg

        return psycopg.connect(url, prepare_threshold=None)
    import pymysql

    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port,
        user=parts.username,
        password=parts.password,
        database=parts.path.lstrip("/"),
    )


request = json.load(sys.stdin)
scope = {}
exec(request["code"], scope)
place_order = scope["place_order"]
connection = connect(request["database"], request["url"])
cursor = connection.cursor()
committed = []

# Rolled back before, between and after what is committed.
for number, payload in enumerate(request["payloads"]):
    place_order(cursor, -1, uuid.uuid4(), b"rolled back")
    connection.rollback()
    event_id = uuid.uuid4()
    place_order(cursor, number, event_id, bytes(payload))
    cursor.execute("savepoint here")
    place_order(cursor, -1, uuid.uuid4(), b"rolled back to a savepoint")
    cursor.execute("rollback to here")
    connection.commit()
    committed.append(event_id)
place_order(cursor, -1, uuid.uuid4(), b"never ended")
connection.close()
print("\n".join(map(str, committed)))
