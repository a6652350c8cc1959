//! Names of headers that are not the application's to set.

/// Prefixes under which relays write an event's metadata: their own, and CloudEvents' of every
/// protocol.
const PREFIXES: [&str; 5] = ["posthaste-", "ce-", "ce_", "cloudEvents:", "cloudEvents_"];

/// Names under which a message's id travels without such a prefix: on NATS, and as CloudEvents'
/// attribute on MQTT.
const NAMES: [&str; 2] = ["Nats-Msg-Id", "id"];

/// Whether a header of this name is the relay's to set, in whatever case it is written. Consumers
/// read a message's id from such headers: one that came with an earlier message and was copied
/// would make them take two events for one.
pub fn is_reserved(name: &str) -> bool {
    let begins = |prefix: &str| {
        name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    PREFIXES.into_iter().any(begins) || NAMES.into_iter().any(|id| name.eq_ignore_ascii_case(id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, EventBuilder, Limits, limits};

    fn event() -> EventBuilder {
        Event::builder("Happened").raw_json("{}")
    }

    #[test]
    fn an_event_is_refused_that_sets_a_reserved_header() {
        let refusal = event().header("posthaste-id", "x").build().unwrap_err().to_string();
        assert!(refusal.starts_with("header posthaste-id is reserved"), "{refusal}");
        // Behind `build` only a hook can add one: the outbox looks again.
        let event = event().build().unwrap().with_header("Ce-Id", "x");
        let refusal = event.check(&Limits::default()).unwrap_err().to_string();
        assert!(refusal.starts_with("header Ce-Id is reserved"), "{refusal}");
    }

    #[test]
    fn headers_that_are_copied_lose_the_reserved_ones() {
        let upstream = [("posthaste-id", "a"), ("ce_id", "b"), ("id", "c"), ("correlation", "d")];
        let event = event().headers(upstream).build().unwrap();
        assert_eq!(event.headers().keys().collect::<Vec<_>>(), ["correlation"]);
        event.check(&Limits::default()).unwrap();
    }

    #[test]
    fn headers_have_a_limit() {
        let with = |bytes: usize| event().header("h", "x".repeat(bytes - 1)).build();
        assert!(with(limits::HEADERS).is_ok());
        let refusal = with(limits::HEADERS + 1).unwrap_err().to_string();
        assert_eq!(refusal, "headers is 131073 long, the limit is 131072");
    }

    #[test]
    fn a_text_with_u0000_and_a_time_that_not_every_database_has_are_refused() {
        for (field, builder) in [
            ("topic", event().topic("a\0b")),
            ("routing key", event().routing_key("a\0b")),
            ("schema id", event().schema("a\0b", 1)),
            ("content type", event().content_type("a\0b")),
            ("ordering key", event().ordering_key("a\0b")),
            ("tenant", event().tenant("a\0b")),
            ("time of the event", event().occurred_at(jiff::Timestamp::MIN)),
            ("time of delivery", event().deliver_at(jiff::Timestamp::MIN)),
        ] {
            let refusal = builder.build().unwrap_err().to_string();
            assert!(refusal.starts_with(field), "{field}: {refusal}");
        }
        event().occurred_at(jiff::Timestamp::MAX).build().unwrap();
    }

    #[test]
    fn a_default_tenant_that_does_not_fit_is_refused_before_the_insert() {
        for tenant in [String::new(), "t".repeat(101), "a\0b".to_owned()] {
            let event = event().build().unwrap().with_default_tenant(Some(&tenant));
            assert!(event.check(&Limits::default()).is_err(), "{tenant:?}");
        }
    }

    #[test]
    fn metadata_and_ids_are_reserved_in_every_case_and_nothing_else_is() {
        for name in [
            "posthaste-id",
            "Posthaste-Tenant",
            "ce-id",
            "CE_Type",
            "cloudEvents:source",
            "cloudevents_time",
            "nats-msg-id",
            "ID",
        ] {
            assert!(is_reserved(name), "{name}");
        }
        for name in
            ["", "trace", "source", "center", "ce", "identity", "posthaste", "\u{e9}v\u{e9}nement"]
        {
            assert!(!is_reserved(name), "{name}");
        }
    }
}
