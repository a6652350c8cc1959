-- Roles with few rights each, for an outbox in the table outbox_event of the schema public. Run it
-- after `posthaste migrate`, as the owner of the tables who may also create roles, and again after
-- an update that adds tables. It can be repeated. For another table or schema replace its name.
--
-- The roles cannot log in. Give them to the accounts that do:
--     create role shop_app login password '…' in role posthaste_writer;
--     create role shop_relay login password '…' in role posthaste_relay;

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

grant usage on schema public to posthaste_writer, posthaste_relay, posthaste_operator;

-- Nobody else reads payloads.
revoke all on
    outbox_event, outbox_event_shards, outbox_event_relays, outbox_event_attempts,
    outbox_event_controls, outbox_event_meta, outbox_event_inbox, outbox_event_idempotency,
    outbox_event_audit, outbox_event_life
from public;

-- The application. It reads back what it wrote: the same id again gives the first sequence.
grant insert, select on outbox_event to posthaste_writer;
grant select, insert, update, delete on outbox_event_inbox, outbox_event_idempotency
    to posthaste_writer;

-- The relay. It never enqueues, and it keeps no audit.
grant select, update, delete on outbox_event to posthaste_relay;
grant select, update on outbox_event_shards, outbox_event_meta to posthaste_relay;
grant select, insert, update, delete on outbox_event_relays to posthaste_relay;
grant select, insert, delete on outbox_event_attempts to posthaste_relay;
grant select, insert, update on outbox_event_life to posthaste_relay;
grant select on outbox_event_controls to posthaste_relay;
grant select, delete on outbox_event_inbox, outbox_event_idempotency to posthaste_relay;

-- Whoever uses the commands, the admin API and the dashboard; a relay that serves them, too. The
-- audit can be added to and completed, not shortened.
grant posthaste_relay to posthaste_operator;
grant insert, delete on outbox_event_controls to posthaste_operator;
grant select, insert, update on outbox_event_audit to posthaste_operator;

-- So that `posthaste doctor` sees the long transactions of others (a superuser's to give):
--     grant pg_read_all_stats to posthaste_operator;
