-- DDL commits by itself here: every statement can be repeated, and the version is written last.
create table if not exists {meta} (
    id int not null primary key check (id = 1),
    version int not null,
    -- Of the statements that made the tables: a build with others refuses them.
    checksum varchar(16) not null,
    shards int not null,
    purge_position bigint not null default 0,
    created_at datetime(6) not null default (utc_timestamp(6))
) engine = innodb;

insert into {meta} (id, version, checksum, shards) values (1, 0, '{checksum}', {shard_count})
on duplicate key update id = id;

-- One event a row. Times are UTC whatever the session's zone. The binary collation keeps keys
-- apart that differ only in case or accent; a UUID is the same in both cases.
create table if not exists {events} (
    sequence bigint not null auto_increment primary key,
    event_id char(36) character set ascii collate ascii_general_ci not null,
    event_type varchar(128) not null,
    aggregate_type varchar(100) not null default '__GLOBAL__',
    aggregate_id varchar(255),
    tenant varchar(100),
    topic varchar(255),
    routing_key varchar(100),
    schema_id varchar(128),
    schema_version int not null default 1,
    -- null: derived from tenant and aggregate; empty: unordered; else the application's own
    ordering_key varchar(255),
    -- First 4 bytes of sha2(key, 256). Writers may leave it out: then the relay computes the shard.
    key_hash int unsigned,
    shard int generated always as (key_hash mod {shard_count}) virtual,
    -- a JSON object of strings, or null
    headers longtext,
    payload longblob not null,
    content_type varchar(100) not null default 'application/json',
    occurred_at datetime(6) not null default (utc_timestamp(6)),
    created_at datetime(6) not null default (utc_timestamp(6)),
    attempts int not null default 0,
    replay int not null default 0,
    not_before datetime(6),
    wait varchar(8),
    lane bigint,
    destination varchar(100),
    locked_by varchar(200),
    locked_until datetime(6),
    last_error text,
    discarded_at datetime(6),
    dead_at datetime(6),
    sent_at datetime(6),
    unique key {bare}_event_idx (event_id),
    -- No index mentions sent_at: success is to cost one row and nothing else.
    key {bare}_aggregate_idx (aggregate_id, sequence),
    key {bare}_due_idx (not_before),
    -- A lane's blockers, and its held events in order, whatever else waits in it.
    key {bare}_lane_idx (lane, destination, wait, sequence),
    key {bare}_dead_idx (dead_at),
    key {bare}_locked_idx (locked_by, locked_until)
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

create table if not exists {shards} (
    tenant_group varchar(100) not null default '',
    shard int not null,
    locked_by varchar(200),
    locked_until datetime(6),
    epoch bigint not null default 0,
    mark bigint not null default 0,
    mark_context mediumtext not null,
    -- The shard first: an operator's `where shard = 7` is not to lock all leases.
    primary key (shard, tenant_group)
) engine = innodb default character set utf8mb4 collate utf8mb4_bin;

insert into {shards} (tenant_group, shard, mark_context) values {shard_rows}
on duplicate key update epoch = epoch;

create table if not exists {relays} (
    owner varchar(200) not null primary key,
    name varchar(100) not null,
    ordering varchar(8) not null,
    version varchar(40) not null,
    lease_ms bigint not null,
    reserved bigint not null default 0,
    started_at datetime(6) not null,
    heartbeat_at datetime(6) not null,
    breakers text
) engine = innodb default character set utf8mb4 collate utf8mb4_bin;

create table if not exists {attempts} (
    id bigint not null auto_increment primary key,
    sequence bigint not null,
    replay int not null default 0,
    attempt int not null,
    at datetime(6) not null,
    relay varchar(200) not null,
    destination varchar(100) not null,
    error text not null,
    unique key {bare}_attempts_event_idx (sequence, replay, attempt)
) engine = innodb default character set utf8mb4 collate utf8mb4_bin;

create table if not exists {controls} (
    kind varchar(20) not null,
    name varchar(255) not null,
    value text,
    set_by varchar(200) not null,
    set_at datetime(6) not null,
    primary key (kind, name)
) engine = innodb default character set utf8mb4 collate utf8mb4_bin;

-- One message of one consumer a row, written in the transaction of its effect. Names are bytes: a
-- text compares equal to itself with a blank behind it, and a message would pass for another one.
create table if not exists {inbox} (
    consumer varbinary(400) not null,
    message_id varbinary(1020) not null,
    received_at datetime(6) not null default (utc_timestamp(6)),
    primary key (consumer, message_id),
    key {bare}_inbox_idx (received_at)
) engine = innodb row_format = dynamic;

-- One Idempotency-Key of one caller a row. No status: the request is running, or died.
create table if not exists {idempotency} (
    -- whose key it is: the principal, or tenant and principal
    scope varbinary(400) not null,
    idempotency_key varbinary(255) not null,
    -- SHA-256 of method, path and body
    fingerprint char(64) character set ascii collate ascii_bin not null,
    -- who may finish it: another token since, and a late finisher is refused
    locked_by varchar(200) character set ascii collate ascii_bin not null,
    locked_until datetime(6) not null,
    status smallint,
    -- a JSON array of pairs
    headers longtext character set utf8mb4 collate utf8mb4_bin,
    body longblob,
    created_at datetime(6) not null default (utc_timestamp(6)),
    expires_at datetime(6) not null,
    primary key (scope, idempotency_key),
    key {bare}_idempotency_idx (expires_at)
) engine = innodb row_format = dynamic;

-- Who changed what.
create table if not exists {audit} (
    id bigint not null auto_increment primary key,
    at datetime(6) not null default (utc_timestamp(6)),
    -- As the client says: a token's name, or the account at a terminal.
    changed_by varchar(200) character set utf8mb4 collate utf8mb4_bin not null,
    -- As the server knows: nobody sets it.
    db_user varchar(300) character set utf8mb4 collate utf8mb4_bin not null default (user()),
    action varchar(50) character set ascii collate ascii_bin not null,
    subject text character set utf8mb4 collate utf8mb4_bin not null,
    -- null while the change runs, or when whoever made it died
    ended_at datetime(6),
    affected bigint not null default 0,
    error text character set utf8mb4 collate utf8mb4_bin
) engine = innodb row_format = dynamic;

-- The life of the server in which the present leases were given: who it is, and since when it runs.
create table if not exists {life} (
    id int not null primary key check (id = 1),
    token varchar(400) not null,
    server varchar(300) not null,
    -- Leases with a lower epoch were given in an earlier life.
    first_epoch bigint not null
) engine = innodb default character set utf8mb4 collate utf8mb4_bin;

update {meta} set version = 1 where id = 1 and version = 0;
