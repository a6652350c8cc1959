-- Posthaste outbox, version 2: messages that were handled, and keys of requests.

-- One message of one consumer a row, written in the transaction of its effect.
create table if not exists {inbox} (
    consumer varchar(100) not null,
    message_id varchar(255) not null,
    received_at integer not null
        default (cast((julianday('now') - 2440587.5) * 86400000000.0 as integer)),
    primary key (consumer, message_id)
);

create index if not exists {bare}_inbox_idx on {inbox} (received_at);

-- One Idempotency-Key of one caller a row. No status: the request is running, or died.
create table if not exists {idempotency} (
    -- Whose key it is: a tenant or a principal.
    scope varchar(100) not null,
    idempotency_key varchar(255) not null,
    -- SHA-256 of method, path and body.
    fingerprint char(64) not null,
    -- Who may finish it: another token since, and a late finisher is refused.
    locked_by varchar(200) not null,
    locked_until integer not null,
    created_at integer not null
        default (cast((julianday('now') - 2440587.5) * 86400000000.0 as integer)),
    expires_at integer not null,
    status integer,
    -- A JSON array of pairs.
    headers text,
    body blob,
    primary key (scope, idempotency_key)
);

create index if not exists {bare}_idempotency_idx on {idempotency} (expires_at);

update {meta} set version = 2 where id = 1 and version < 2;
