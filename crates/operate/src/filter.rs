//! A filter in words, for the audit and for questions.

use posthaste_core::store::Filter;

/// The filter as `name=value` pairs, such as `status=dead tenant=acme`; `all events` when it is empty.
pub fn describe(filter: &Filter) -> String {
    let Filter {
        status,
        event_type,
        aggregate_type,
        aggregate_id,
        tenant,
        created_from,
        created_before,
    } = filter;
    let parts = [
        ("status", status.map(|status| status.to_string())),
        ("type", event_type.clone()),
        ("aggregate_type", aggregate_type.clone()),
        ("aggregate_id", aggregate_id.clone()),
        ("tenant", tenant.clone()),
        ("from", created_from.map(|time| time.to_string())),
        ("before", created_before.map(|time| time.to_string())),
    ];
    let words: Vec<String> = parts
        .into_iter()
        .filter_map(|(name, value)| value.map(|value| format!("{name}={value}")))
        .collect();
    if words.is_empty() { "all events".to_owned() } else { words.join(" ") }
}

/// Whether the filter says by tenant, type, aggregate or time which events it means.
pub(crate) fn narrows(filter: &Filter) -> bool {
    let Filter { status: _, event_type, aggregate_type, aggregate_id, tenant, .. } = filter;
    [event_type, aggregate_type, aggregate_id, tenant].iter().any(|part| part.is_some())
        || filter.created_from.is_some()
        || filter.created_before.is_some()
}

#[cfg(test)]
mod tests {
    use posthaste_core::Status;

    use super::*;

    #[test]
    fn a_filter_is_told_by_its_parts() {
        assert_eq!(describe(&Filter::default()), "all events");
        let filter = Filter {
            status: Some(Status::Dead),
            event_type: Some("Placed".into()),
            aggregate_type: Some("Order".into()),
            aggregate_id: Some("7".into()),
            tenant: Some("acme".into()),
            created_from: Some("2026-01-01T00:00:00Z".parse().unwrap()),
            created_before: Some("2026-01-02T00:00:00Z".parse().unwrap()),
        };
        assert_eq!(
            describe(&filter),
            "status=dead type=Placed aggregate_type=Order aggregate_id=7 tenant=acme \
             from=2026-01-01T00:00:00Z before=2026-01-02T00:00:00Z"
        );
    }

    #[test]
    fn a_status_alone_narrows_nothing_and_every_other_part_does() {
        let dead = || Filter { status: Some(Status::Dead), ..Filter::default() };
        assert!(!narrows(&dead()));
        let text = || Some("x".to_owned());
        let time = || Some(jiff::Timestamp::UNIX_EPOCH);
        for filter in [
            Filter { event_type: text(), ..dead() },
            Filter { aggregate_type: text(), ..dead() },
            Filter { aggregate_id: text(), ..dead() },
            Filter { tenant: text(), ..dead() },
            Filter { created_from: time(), ..dead() },
            Filter { created_before: time(), ..dead() },
        ] {
            assert!(narrows(&filter), "{filter:?}");
        }
    }
}
