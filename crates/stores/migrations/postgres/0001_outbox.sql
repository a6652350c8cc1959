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
    -- First 4 bytes of the MD5 of the ordering key, modulo the number of shards. Migration 5 lets a
    -- trigger compute it.
    shard int not null generated always as (
        (('x' || substr(md5(
            case
                when ordering_key <> '' then ordering_key
                when ordering_key is null and aggregate_id is not null then
                    octet_length(coalesce(tenant, ''))::text || ':' || coalesce(tenant, '')
                    || octet_length(aggregate_type)::text || ':' || aggregate_type
                    || octet_length(aggregate_id)::text || ':' || aggregate_id
                else event_id::text
            end
        ), 1, 8))::bit(32)::bigint % {shard_count})::int
    ) stored,
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
create index if not exists {bare}_dead_idx on {events} (dead_at) where dead_at is not null;

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

create table if not exists {meta} (
    id int primary key check (id = 1),
    version int not null,
    shards int not null,
    purge_position bigint not null default 0,
    created_at timestamptz not null default clock_timestamp()
);

insert into {shards} (shard) select generate_series(0, {shard_count} - 1) on conflict do nothing;
insert into {meta} (id, version, shards) values (1, 1, {shard_count}) on conflict do nothing;
