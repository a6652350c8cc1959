-- Posthaste outbox, version 3: who changed what.

create table if not exists {audit} (
    id bigint generated always as identity primary key,
    at timestamptz not null default clock_timestamp(),
    changed_by varchar(200) not null,
    action varchar(50) not null,
    subject text not null,
    -- Null while the change runs, or when whoever made it died.
    ended_at timestamptz,
    affected bigint not null default 0,
    error text
);

update {meta} set version = 3 where id = 1 and version < 3;
