-- Posthaste outbox, version 1.

-- One event a row. Times are microseconds since 1970 (UTC). `autoincrement`: a sequence is never
-- used twice, or a reader that has passed a deleted event would miss the next one. The payload
-- stands last: what stands behind a large value is read through its overflow pages.
create table if not exists {events} (
    sequence integer primary key autoincrement,
    -- Lower-case and hyphenated; a UUID in capitals is the same one.
    event_id text not null collate nocase,
    event_type varchar(128) not null,
    aggregate_type varchar(100) not null default '__GLOBAL__',
    aggregate_id varchar(255),
    tenant varchar(100),
    topic varchar(255),
    routing_key varchar(100),
    schema_id varchar(128),
    schema_version integer not null default 1,
    -- null: derived from tenant and aggregate; empty: unordered; else the application's own
    ordering_key varchar(255),
    shard integer generated always as (0) virtual,
    content_type varchar(100) not null default 'application/json',
    occurred_at integer not null
        default (cast((julianday('now') - 2440587.5) * 86400000000.0 as integer)),
    created_at integer not null
        default (cast((julianday('now') - 2440587.5) * 86400000000.0 as integer)),
    attempts integer not null default 0,
    replay integer not null default 0,
    -- A text would compare as later than every time, and the event would wait for ever.
    not_before integer check (typeof(not_before) in ('integer', 'null')),
    wait varchar(8),
    lane integer,
    destination varchar(100),
    locked_by varchar(200),
    locked_until integer,
    discarded_at integer,
    dead_at integer,
    sent_at integer,
    last_error text,
    -- a JSON object of strings, or null
    headers text,
    payload blob not null
);

-- No index mentions sent_at: success is to cost one row and nothing else.
create unique index if not exists {bare}_event_id_idx on {events} (event_id);
create index if not exists {bare}_aggregate_idx on {events} (aggregate_id, sequence);
create index if not exists {bare}_not_before_idx on {events} (not_before) where not_before is not null;
create index if not exists {bare}_dead_idx on {events} (dead_at) where dead_at is not null;
create index if not exists {bare}_locked_idx on {events} (locked_until) where locked_until is not null;
-- A lane's blockers, and its held events in order, whatever else waits in it.
create index if not exists {bare}_lanes_idx on {events} (lane, destination, wait, sequence)
    where lane is not null;
-- Dead and failed events are listed newest first, however many there are. Success touches none of these
-- columns, and a fresh row is in neither index.
create index if not exists {bare}_dead_list_idx on {events} (sequence) where dead_at is not null;
create index if not exists {bare}_retry_list_idx on {events} (sequence)
    where wait in ('retry', 'suspect') or attempts > 0;

create table if not exists {shards} (
    tenant_group varchar(100) not null default '',
    shard integer not null,
    locked_by varchar(200),
    locked_until integer,
    epoch integer not null default 0,
    mark integer not null default 0,
    mark_context text not null default '',
    primary key (tenant_group, shard)
);

create table if not exists {relays} (
    owner varchar(200) not null primary key,
    name varchar(100) not null,
    ordering varchar(8) not null,
    version varchar(40) not null,
    lease_ms integer not null,
    reserved integer not null default 0,
    started_at integer not null,
    heartbeat_at integer not null,
    breakers text
);

create table if not exists {attempts} (
    id integer primary key autoincrement,
    sequence integer not null,
    replay integer not null default 0,
    attempt integer not null,
    at integer not null,
    relay varchar(200) not null,
    destination varchar(100) not null,
    error text not null
);

create unique index if not exists {bare}_attempts_event_idx
    on {attempts} (sequence, replay, attempt);

create table if not exists {controls} (
    kind varchar(20) not null,
    name varchar(255) not null,
    value text,
    set_by varchar(200) not null,
    set_at integer not null,
    primary key (kind, name)
);

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
    -- Whose key it is: the principal, or tenant and principal.
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

-- Who changed what.
create table if not exists {audit} (
    id integer primary key autoincrement,
    at integer not null default (cast((julianday('now') - 2440587.5) * 86400000000.0 as integer)),
    changed_by varchar(200) not null,
    action varchar(50) not null,
    subject text not null,
    -- Null while the change runs, or when whoever made it died.
    ended_at integer,
    affected integer not null default 0,
    error text
);

create table if not exists {meta} (
    id integer primary key check (id = 1),
    version integer not null,
    -- Of the statements that made the tables: a build with others refuses them.
    checksum varchar(16) not null,
    shards integer not null,
    purge_position integer not null default 0,
    created_at integer not null
        default (cast((julianday('now') - 2440587.5) * 86400000000.0 as integer))
);

insert into {shards} (shard) values (0) on conflict do nothing;
insert into {meta} (id, version, checksum, shards) values (1, 1, '{checksum}', 1) on conflict do nothing;
