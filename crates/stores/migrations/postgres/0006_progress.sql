-- Posthaste outbox, version 6: every read is bounded, and another server is noticed.

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

create or replace function {shard_of}() returns trigger language plpgsql as $$
begin
    -- Whatever a row that is put back by hand brings along: it is written now.
    new.xid := pg_current_xact_id();
    -- First 4 bytes of the MD5 of the ordering key, modulo the number of shards.
    new.shard := ('x' || substr(md5(
        case
            when new.ordering_key <> '' then new.ordering_key
            when new.ordering_key is null and new.aggregate_id is not null then
                octet_length(coalesce(new.tenant, ''))::text || ':' || coalesce(new.tenant, '')
                || octet_length(new.aggregate_type)::text || ':' || new.aggregate_type
                || octet_length(new.aggregate_id)::text || ':' || new.aggregate_id
            else new.event_id::text
        end
    ), 1, 8))::bit(32)::bigint % {shard_count};
    return new;
end
$$;

-- The rows of one transaction in order, from any of them on.
create index if not exists {bare}_xid_sequence_idx on {events} (xid, sequence);
drop index if exists {events}_xid_idx;

-- A lane's blockers, and its held events in order, whatever else waits in it.
create index if not exists {bare}_lanes_idx on {events} (lane, destination, wait, sequence)
    where lane is not null;
drop index if exists {events}_lane_idx;

-- What falls due at the same moment has an order, too.
create index if not exists {bare}_due_idx on {events} (not_before, sequence)
    where not_before is not null;
drop index if exists {events}_not_before_idx;

-- The server empties an unlogged table when it is promoted or recovers from a crash, and keeps it over a
-- clean restart: another token means that commits may be lost.
create unlogged table if not exists {life} (
    id int primary key check (id = 1),
    token uuid not null,
    -- Leases with a lower epoch were given in an earlier life.
    first_epoch bigint not null
);

update {meta} set version = 6 where id = 1 and version < 6;
