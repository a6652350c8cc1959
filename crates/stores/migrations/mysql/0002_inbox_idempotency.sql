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
    -- whose key it is: a tenant or a principal
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

update {meta} set version = 2 where id = 1 and version < 2;
