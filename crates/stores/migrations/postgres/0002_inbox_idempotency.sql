-- Posthaste outbox, version 2: messages that were handled, and keys of requests.

-- One message of one consumer a row, written in the transaction of its effect.
create table if not exists {inbox} (
    consumer varchar(100) collate "C" not null,
    message_id varchar(255) collate "C" not null,
    received_at timestamptz not null default clock_timestamp(),
    primary key (consumer, message_id)
);

create index if not exists {bare}_inbox_idx on {inbox} (received_at);

-- One Idempotency-Key of one caller a row. No status: the request is running, or died.
create table if not exists {idempotency} (
    -- Whose key it is: a tenant or a principal.
    scope varchar(100) collate "C" not null,
    idempotency_key varchar(255) collate "C" not null,
    -- SHA-256 of method, path and body.
    fingerprint char(64) not null,
    -- Who may finish it: another token since, and a late finisher is refused.
    locked_by varchar(200) not null,
    locked_until timestamptz not null,
    status smallint,
    -- A JSON array of pairs.
    headers text,
    body bytea,
    created_at timestamptz not null default clock_timestamp(),
    expires_at timestamptz not null,
    primary key (scope, idempotency_key)
);

create index if not exists {bare}_idempotency_idx on {idempotency} (expires_at);

update {meta} set version = 2 where id = 1 and version < 2;
