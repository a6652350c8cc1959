-- Accounts with few rights each, for an outbox in the table outbox_event of the database shop, on MySQL 8 and
-- MariaDB. Make the accounts, then run this after `posthaste migrate`, as an account that may grant. For
-- another table or database replace its name.
--     create user posthaste_writer identified by '…';
--     create user posthaste_relay identified by '…';
--     create user posthaste_operator identified by '…';

-- The application. It chooses neither an event's number nor its state, and reads back what tells that the
-- same id is there already: no payload.
grant
    insert (event_id, event_type, aggregate_type, aggregate_id, tenant, topic, routing_key, schema_id,
        schema_version, ordering_key, key_hash, headers, payload, content_type, occurred_at, not_before),
    select (event_id, sequence, event_type, aggregate_type, aggregate_id, tenant, ordering_key)
    on shop.outbox_event to posthaste_writer;
-- Only if it has an inbox or idempotency keys.
grant select, insert, delete on shop.outbox_event_inbox to posthaste_writer;
grant select, insert, update, delete on shop.outbox_event_idempotency to posthaste_writer;

-- The relay. It never enqueues, it cannot change what an event says, and it keeps no audit. It adds the hash of
-- the key where a writer left it out. An attempt that is listed already is listed by `on duplicate key update`.
grant
    select, delete,
    update (attempts, not_before, wait, lane, destination, locked_by, locked_until, last_error, dead_at,
        sent_at, key_hash)
    on shop.outbox_event to posthaste_relay;
grant select, update (locked_by, locked_until, epoch, mark, mark_context) on shop.outbox_event_shards
    to posthaste_relay;
grant select, update (purge_position) on shop.outbox_event_meta to posthaste_relay;
grant select, insert, update, delete on shop.outbox_event_relays to posthaste_relay;
grant select, insert, update, delete on shop.outbox_event_attempts to posthaste_relay;
grant select, insert, update on shop.outbox_event_life to posthaste_relay;
grant select on shop.outbox_event_controls to posthaste_relay;
-- It purges both tables, and does not read the responses that are stored in the second.
grant select, delete on shop.outbox_event_inbox to posthaste_relay;
grant select (scope, idempotency_key, expires_at), delete on shop.outbox_event_idempotency to posthaste_relay;
-- Only with it other accounts' open transactions are shown.
grant process on *.* to posthaste_relay;

-- Whoever uses the commands, the admin API and the dashboard; a relay that serves them, too. The audit can be
-- added to and completed, not shortened: who, what and when stay as they were written.
grant
    select, delete,
    update (attempts, not_before, wait, lane, destination, locked_by, locked_until, last_error, dead_at,
        sent_at, key_hash, replay, discarded_at)
    on shop.outbox_event to posthaste_operator;
grant select, update (locked_by, locked_until, epoch, mark, mark_context) on shop.outbox_event_shards
    to posthaste_operator;
grant select, update (purge_position) on shop.outbox_event_meta to posthaste_operator;
grant select, insert, update, delete on shop.outbox_event_relays to posthaste_operator;
grant select, insert, update, delete on shop.outbox_event_attempts to posthaste_operator;
grant select, insert, update on shop.outbox_event_life to posthaste_operator;
grant select, delete on shop.outbox_event_inbox to posthaste_operator;
grant select (scope, idempotency_key, expires_at), delete on shop.outbox_event_idempotency
    to posthaste_operator;
grant select, insert (kind, name, value, set_by, set_at), delete on shop.outbox_event_controls
    to posthaste_operator;
grant select, insert (changed_by, action, subject), update (ended_at, affected, error)
    on shop.outbox_event_audit to posthaste_operator;
grant process on *.* to posthaste_operator;
