//! What log lines say of an event: enough to find it, and never its payload.

use std::fmt;

use posthaste_core::{Envelope, Error, Key, Result};
use uuid::Uuid;

/// How log lines name a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogTenant {
    /// As it is.
    #[default]
    Plain,
    /// As 16 hexadecimal digits that are the same for the same tenant.
    Hashed,
    /// Not at all.
    Off,
}

impl std::str::FromStr for LogTenant {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "plain" => Ok(Self::Plain),
            "hashed" => Ok(Self::Hashed),
            "off" => Ok(Self::Off),
            other => Err(Error::invalid(format!(
                "tenant {other:?} is not known in logs; use plain, hashed or off"
            ))),
        }
    }
}

impl LogTenant {
    fn of(self, tenant: Option<&str>) -> Option<String> {
        match (self, tenant) {
            (Self::Plain, Some(tenant)) => Some(tenant.to_owned()),
            (Self::Hashed, Some(tenant)) => Some(format!("{:016x}", Key::of(tenant).0)),
            (Self::Off, _) | (_, None) => None,
        }
    }
}

/// An event in a log line.
#[derive(Debug, Clone)]
pub(crate) struct Brief {
    pub(crate) id: Uuid,
    pub(crate) topic: String,
    pub(crate) aggregate_type: String,
    pub(crate) tenant: Option<String>,
}

impl Brief {
    pub(crate) fn of(envelope: &Envelope, tenant: LogTenant) -> Self {
        Self {
            id: envelope.event.id(),
            topic: envelope.topic().to_owned(),
            aggregate_type: envelope.event.aggregate_type().to_owned(),
            tenant: tenant.of(envelope.event.tenant()),
        }
    }
}

/// A field that is left out when there is nothing to say.
pub(crate) fn field<T: fmt::Display>(
    value: Option<&T>,
) -> Option<tracing::field::DisplayValue<&T>> {
    value.map(tracing::field::display)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_named_hashed_or_left_out() {
        assert_eq!(LogTenant::Plain.of(Some("acme")).as_deref(), Some("acme"));
        let hashed = LogTenant::Hashed.of(Some("acme")).unwrap();
        assert_eq!((hashed.len(), hashed.contains("acme")), (16, false));
        assert_eq!(LogTenant::Hashed.of(Some("acme")), Some(hashed));
        assert_eq!(LogTenant::Off.of(Some("acme")), None);
        assert_eq!(LogTenant::Plain.of(None), None);
    }
}
