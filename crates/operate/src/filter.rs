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
