-- Posthaste outbox, version 4: dead and failed events can be listed newest first, however many there
-- are. Success touches none of these columns, and a fresh row is in neither index.

create index if not exists {bare}_dead_list_idx on {events} (sequence) where dead_at is not null;
create index if not exists {bare}_retry_list_idx on {events} (sequence)
    where wait in ('retry', 'suspect') or attempts > 0;

update {meta} set version = 4 where id = 1 and version < 4;
