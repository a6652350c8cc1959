-- Posthaste outbox, version 5: every read is bounded.

-- A lane's blockers, and its held events in order, whatever else waits in it.
create index if not exists {bare}_lanes_idx on {events} (lane, destination, wait, sequence)
    where lane is not null;
drop index if exists {bare}_lane_idx;

update {meta} set version = 5 where id = 1 and version < 5;
