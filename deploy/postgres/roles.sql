-- Roles with few rights each, for an outbox in the table outbox_event of the schema public. Run it
-- after `posthaste migrate`, as the owner of the tables who may also create roles, and again after
-- an update that adds tables. It can be repeated. For another table or schema replace its name.
--
-- The roles cannot log in. Give them to the accounts that do:
--     create role shop_app login password '…' in role posthaste_writer;
--     create role shop_relay login password '…' in role posthaste_relay;
-- Where not everybody may connect (revoke connect on database shop from public), these may:
--     grant connect on database shop to posthaste_writer, posthaste_relay, posthaste_operator;

do $$ begin
    create role posthaste_writer nologin;
exception when duplicate_object then null;
end $$;

do $$ begin
    create role posthaste_relay nologin;
exception when duplicate_object then null;
end $$;

do $$ begin
    create role posthaste_operator nologin;
exception when duplicate_object then null;
end $$;

begin;

grant usage on schema public to posthaste_writer, posthaste_relay, posthaste_operator;

-- Nobody else reads payloads; and what an earlier edition of this file granted is taken back.
revoke all on
    outbox_event, outbox_event_shards, outbox_event_relays, outbox_event_attempts,
    outbox_event_controls, outbox_event_meta, outbox_event_inbox, outbox_event_idempotency,
    outbox_event_audit, outbox_event_life
from public, posthaste_writer, posthaste_relay, posthaste_operator;

-- The application. It chooses neither an event's number nor its state, and reads back what tells that the
-- same id is there already: no payload.
grant
    insert (event_id, event_type, aggregate_type, aggregate_id, tenant, topic, routing_key, schema_id,
        schema_version, ordering_key, headers, payload, content_type, occurred_at, not_before),
    select (event_id, sequence, event_type, aggregate_type, aggregate_id, tenant, ordering_key)
    on outbox_event to posthaste_writer;
-- Only if it has an inbox or idempotency keys. Purging locks rows, for which PostgreSQL asks for `update`
-- on a column.
grant select, insert, update (received_at), delete on outbox_event_inbox to posthaste_writer;
grant select, insert, update, delete on outbox_event_idempotency to posthaste_writer;

-- The relay. It never enqueues, it cannot change what an event says, and it keeps no audit.
grant
    select, delete,
    update (attempts, not_before, wait, lane, destination, locked_by, locked_until, last_error, dead_at,
        sent_at)
    on outbox_event to posthaste_relay;
grant select, update (locked_by, locked_until, epoch, mark, mark_context) on outbox_event_shards
    to posthaste_relay;
grant select, update (purge_position) on outbox_event_meta to posthaste_relay;
grant select, insert, update, delete on outbox_event_relays to posthaste_relay;
grant select, insert, delete on outbox_event_attempts to posthaste_relay;
grant select, insert, update on outbox_event_life to posthaste_relay;
grant select on outbox_event_controls to posthaste_relay;
-- It purges both tables, and does not read the responses that are stored in the second.
grant select, update (received_at), delete on outbox_event_inbox to posthaste_relay;
grant select (scope, idempotency_key, expires_at), update (expires_at), delete on outbox_event_idempotency
    to posthaste_relay;

-- Whoever uses the commands, the admin API and the dashboard; a relay that serves them, too. The
-- audit can be added to and completed, once for each entry, and neither changed nor shortened: who asked
-- the database, from where and when, it writes by itself.
grant posthaste_relay to posthaste_operator;
grant update (replay, discarded_at) on outbox_event to posthaste_operator;
grant insert (kind, name, value, set_by), delete on outbox_event_controls to posthaste_operator;
grant select, insert (changed_by, action, subject), update (ended_at, affected, error)
    on outbox_event_audit to posthaste_operator;

commit;

-- So that `posthaste doctor` sees the long transactions of others (a superuser's to give):
--     grant pg_read_all_stats to posthaste_operator;
