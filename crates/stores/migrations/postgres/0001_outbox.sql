-- Posthaste outbox, version 1. Needs PostgreSQL 13 or newer and a database in UTF-8.

create table if not exists {events} (
    -- First what has a fixed length and is never null, then what an index holds: whenever a row is
    -- updated, the server looks for each indexed column in both versions of it, and has to walk over
    -- everything before it that has no fixed place (a tenth of the time of a mark, measured).
    sequence bigint generated always as identity primary key,
    event_id uuid not null,
    -- The transaction that wrote the row: how a commit behind the cursor is found.
    xid xid8 not null default pg_current_xact_id(),
    occurred_at timestamptz not null default clock_timestamp(),
    created_at timestamptz not null default clock_timestamp(),
    -- The trigger below computes it.
    shard int not null,
    attempts int not null default 0,
    replay int not null default 0,
    schema_version int not null default 1,
    -- Indexed: its order must not change with the operating system's collations.
    aggregate_id varchar(255) collate "C",
    aggregate_type varchar(100) not null default '__GLOBAL__',
    event_type varchar(128) not null,
    content_type varchar(100) not null default 'application/json',
    payload bytea not null,
    tenant varchar(100),
    topic varchar(255),
    routing_key varchar(100),
    schema_id varchar(128),
    -- Null: derived from tenant and aggregate. Empty: unordered. Else the application's own.
    ordering_key varchar(255),
    -- A JSON object of strings, or null.
    headers text,
    not_before timestamptz,
    wait varchar(8),
    lane bigint,
    destination varchar(100),
    locked_by varchar(200),
    locked_until timestamptz,
    last_error text,
    discarded_at timestamptz,
    dead_at timestamptz,
    -- The only thing that success writes. No index may mention it, in its key or in its predicate:
    -- more than half of each page is kept free, so that this update, which makes the row 8 bytes
    -- longer, stays inside the page (HOT). With exactly half, 1 row in 9 does not (measured).
    sent_at timestamptz
) with (
    fillfactor = 48,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.02
);

create unique index if not exists {bare}_event_id_idx on {events} (event_id);
create index if not exists {bare}_aggregate_idx on {events} (aggregate_id, sequence);
-- The rows of one transaction in order, from any of them on.
create index if not exists {bare}_xid_sequence_idx on {events} (xid, sequence);
-- What falls due at the same moment has an order, too.
create index if not exists {bare}_due_idx on {events} (not_before, sequence)
    where not_before is not null;
-- A lane's blockers, and its held events in order, whatever else waits in it.
create index if not exists {bare}_lanes_idx on {events} (lane, destination, wait, sequence)
    where lane is not null;
create index if not exists {bare}_dead_idx on {events} (dead_at) where dead_at is not null;
-- Dead and failed events are listed newest first, however many there are. Success touches none of these
-- columns, and a fresh row is in neither index.
create index if not exists {bare}_dead_list_idx on {events} (sequence) where dead_at is not null;
create index if not exists {bare}_retry_list_idx on {events} (sequence)
    where wait in ('retry', 'suspect') or attempts > 0;

-- Fires before the first row of a statement is made, so that a writer has its transaction id before it
-- takes its first number. A reader whose snapshot shows a number can then be sure that every lower number
-- belongs to a transaction that the snapshot knows.
create or replace function {take_xid}() returns trigger language plpgsql as $$
begin
    perform pg_current_xact_id();
    return null;
end
$$;

drop trigger if exists {bare}_take_xid on {events};
create trigger {bare}_take_xid before insert on {events}
    for each statement execute function {take_xid}();

-- A generated column would be computed with updates, too, which never change it. Not by MD5: a server under
-- FIPS has none.
create or replace function {shard_of}() returns trigger language plpgsql as $$
declare
    hash bytea;
begin
    -- Whatever a row that is put back by hand brings along: it is written now.
    new.xid := pg_current_xact_id();
    hash := sha256(convert_to(
        case
            when new.ordering_key <> '' then new.ordering_key
            when new.ordering_key is null and new.aggregate_id is not null then
                octet_length(coalesce(new.tenant, ''))::text || ':' || coalesce(new.tenant, '')
                || octet_length(new.aggregate_type)::text || ':' || new.aggregate_type
                || octet_length(new.aggregate_id)::text || ':' || new.aggregate_id
            else new.event_id::text
        end, 'UTF8'));
    -- The first 4 bytes as a number, modulo the number of shards.
    new.shard := ((get_byte(hash, 0)::bigint << 24) + (get_byte(hash, 1) << 16)
        + (get_byte(hash, 2) << 8) + get_byte(hash, 3)) % {shard_count};
    return new;
end
$$;

drop trigger if exists {bare}_shard_of on {events};
create trigger {bare}_shard_of before insert on {events}
    for each row execute function {shard_of}();

create table if not exists {shards} (
    -- Room for leases on a group of tenants; the empty group is all of them.
    tenant_group varchar(100) not null default '',
    shard int not null,
    locked_by varchar(200),
    locked_until timestamptz,
    epoch bigint not null default 0,
    mark bigint not null default 0,
    mark_context text not null default '',
    primary key (tenant_group, shard)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500);

create table if not exists {relays} (
    owner varchar(200) primary key,
    name varchar(100) not null,
    ordering varchar(8) not null,
    version varchar(40) not null,
    lease_ms bigint not null,
    reserved bigint not null default 0,
    started_at timestamptz not null default clock_timestamp(),
    heartbeat_at timestamptz not null default clock_timestamp(),
    breakers text
) with (fillfactor = 50);

create table if not exists {attempts} (
    id bigint generated always as identity primary key,
    sequence bigint not null,
    replay int not null default 0,
    attempt int not null,
    at timestamptz not null default clock_timestamp(),
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
    set_at timestamptz not null default clock_timestamp(),
    primary key (kind, name)
);

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
    -- Whose key it is: the principal, or tenant and principal.
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

-- Who changed what. Operators may add an entry and say how it ended; `deploy/postgres/roles.sql` grants no more.
create table if not exists {audit} (
    id bigint generated always as identity primary key,
    at timestamptz not null default clock_timestamp(),
    -- As the client says: a token's name, or the account at a terminal.
    changed_by varchar(200) not null,
    -- As the server knows: nobody sets these two.
    db_user text not null default session_user,
    client_addr inet default inet_client_addr(),
    action varchar(50) not null,
    subject text not null,
    -- Null while the change runs, or when whoever made it died.
    ended_at timestamptz,
    affected bigint not null default 0,
    error text
);

create or replace function {keep_audit}() returns trigger language plpgsql as $$
begin
    if old.ended_at is not null then
        raise exception 'entry % of the audit has ended and is not changed any more', old.id
            using errcode = 'insufficient_privilege';
    end if;
    return new;
end
$$;

drop trigger if exists {bare}_keep_audit on {audit};
create trigger {bare}_keep_audit before update on {audit}
    for each row execute function {keep_audit}();

-- The server empties an unlogged table when it is promoted or recovers from a crash, and keeps it over a
-- clean restart: another token means that commits may be lost.
create unlogged table if not exists {life} (
    id int primary key check (id = 1),
    token uuid not null,
    -- Leases with a lower epoch were given in an earlier life.
    first_epoch bigint not null
);

create table if not exists {meta} (
    id int primary key check (id = 1),
    version int not null,
    -- Of the statements that made the tables: a build with others refuses them.
    checksum varchar(16) not null,
    shards int not null,
    purge_position bigint not null default 0,
    created_at timestamptz not null default clock_timestamp()
);

insert into {shards} (shard) select generate_series(0, {shard_count} - 1) on conflict do nothing;
insert into {meta} (id, version, checksum, shards) values (1, 1, '{checksum}', {shard_count})
    on conflict do nothing;
