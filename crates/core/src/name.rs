//! Names of event types and aggregate types: a string, or the application's own enum.

use std::borrow::Cow;

/// The aggregate type of an event that belongs to no aggregate.
pub const GLOBAL: &str = "__GLOBAL__";

/// Something that can name an event type or an aggregate type.
///
/// Strings do. An enum of the application's does with one `match`:
///
/// ```
/// use std::borrow::Cow;
/// use posthaste_core::{Event, TypeName};
///
/// enum Orders { Placed, Cancelled }
///
/// impl TypeName for Orders {
///     fn type_name(&self) -> Cow<'_, str> {
///         match self {
///             Orders::Placed => "OrderPlaced".into(),
///             Orders::Cancelled => "OrderCancelled".into(),
///         }
///     }
/// }
///
/// let event = Event::builder(Orders::Placed).raw_json("{}").build()?;
/// assert_eq!(event.event_type(), "OrderPlaced");
/// # Ok::<(), posthaste_core::Error>(())
/// ```
pub trait TypeName {
    /// The name as it is stored and as routes match it.
    fn type_name(&self) -> Cow<'_, str>;
}

impl TypeName for str {
    fn type_name(&self) -> Cow<'_, str> {
        self.into()
    }
}

impl TypeName for String {
    fn type_name(&self) -> Cow<'_, str> {
        self.as_str().into()
    }
}

impl TypeName for Cow<'_, str> {
    fn type_name(&self) -> Cow<'_, str> {
        Cow::Borrowed(self)
    }
}

impl<T: TypeName + ?Sized> TypeName for &T {
    fn type_name(&self) -> Cow<'_, str> {
        (**self).type_name()
    }
}
