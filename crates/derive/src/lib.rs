//! The derive macro `Event`: a struct of the application's as a typed event.
//!
//! Use it through `posthaste` with the feature `derive`; what it writes names that crate.

mod attributes;

mod expand;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Implements `posthaste::TypedEvent` for a struct.
///
/// ```text
/// #[derive(Serialize, Deserialize, Event)]
/// #[event(type = "OrderPlaced", aggregate = "Order", version = 2, upcast = lift)]
/// struct OrderPlaced {
///     #[event(aggregate_id)]
///     order_id: u64,
///     total: u64,
/// }
/// ```
///
/// | on the struct | meaning | unless set |
/// | --- | --- | --- |
/// | `type = "…"` | the event type | the struct's name |
/// | `aggregate = "…"` | the aggregate type | none |
/// | `version = 2` | the version of the payload | 1 |
/// | `upcast = path` | a function that lifts older payloads, `fn(i32, Value) -> Option<Value>` | none is known |
/// | `unordered` | keeps order with no other event | with those of its aggregate |
///
/// | on a field | meaning |
/// | --- | --- |
/// | `aggregate_id` | names the aggregate; any type that can be displayed |
/// | `ordering_key` | keeps order with all events of this key, instead of those of the aggregate |
#[proc_macro_derive(Event, attributes(event))]
pub fn event(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand::typed_event(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}
