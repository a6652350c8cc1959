-- Posthaste outbox, version 3: who changed what.

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

update {meta} set version = 3 where id = 1 and version < 3;
