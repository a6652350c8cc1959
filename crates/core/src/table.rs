//! Names of outbox tables: the only identifiers that come from configuration, checked once.

use std::{fmt, str::FromStr};

use crate::{Error, Result};

/// Longest table name: room for the longest suffix (`_attempts_event_idx`) inside 63 bytes.
pub const MAX_TABLE_NAME: usize = 40;

/// Longest name of a channel on PostgreSQL.
const MAX_CHANNEL: usize = 63;

/// A validated table name, optionally with a schema: `outbox_event`, `billing.outbox`.
///
/// Only lowercase letters, digits and underscores, not starting with a digit, so that it needs no
/// quoting in any of the databases. The side tables carry its name and a suffix.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TableName {
    schema: Option<String>,
    table: String,
}

impl TableName {
    /// The table's name with its schema, as SQL writes it.
    pub fn qualified(&self) -> String {
        self.with_suffix("")
    }

    /// The name of a side table, with the schema: `billing.outbox` + `_shards`.
    pub fn with_suffix(&self, suffix: &str) -> String {
        match &self.schema {
            Some(schema) => format!("{schema}.{}{suffix}", self.table),
            None => format!("{}{suffix}", self.table),
        }
    }

    /// The name without its schema, as index names use it.
    pub fn bare(&self) -> &str {
        &self.table
    }

    /// The schema, if one was given.
    pub fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// The channel on which writers wake the relays of this outbox.
    pub fn channel(&self) -> String {
        match &self.schema {
            Some(schema) => format!("{schema}_{}_wake", self.table),
            None => format!("{}_wake", self.table),
        }
    }
}

impl Default for TableName {
    fn default() -> Self {
        Self { schema: None, table: "outbox_event".to_owned() }
    }
}

impl FromStr for TableName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |why: &str| {
            Error::invalid(format!(
                "table name {text:?} {why}; use lowercase letters, digits and underscores, \
                 optionally as schema.table, at most {MAX_TABLE_NAME} characters"
            ))
        };
        let (schema, table) = match text.split_once('.') {
            Some((schema, table)) => (Some(schema), table),
            None => (None, text),
        };
        for part in schema.into_iter().chain([table]) {
            match part.as_bytes().first() {
                None => return Err(refuse("has an empty part")),
                Some(first) if first.is_ascii_digit() => {
                    return Err(refuse("starts with a digit"));
                }
                Some(_) => {}
            }
            if !part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_') {
                return Err(refuse("has a character that is not allowed"));
            }
        }
        if table.len() > MAX_TABLE_NAME || schema.is_some_and(|s| s.len() > MAX_TABLE_NAME) {
            return Err(refuse(&format!("is {} characters long", text.len())));
        }
        let name = Self { schema: schema.map(str::to_owned), table: table.to_owned() };
        // PostgreSQL refuses to notify a longer one and cuts it off where it listens.
        let channel = name.channel().len();
        if channel > MAX_CHANNEL {
            return Err(refuse(&format!(
                "has a schema and a table that are too long together: their channel would have \
                 {channel} characters, and {MAX_CHANNEL} are allowed"
            )));
        }
        Ok(name)
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.qualified())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_in_a_table_name_is_refused_with_the_name_and_what_is_allowed() {
        let message = "out\"box".parse::<TableName>().unwrap_err().to_string();
        assert!(message.contains(r#""out\"box""#) && message.contains("lowercase"), "{message}");
    }

    #[test]
    fn only_plain_names_pass() {
        for good in ["outbox_event", "orders_outbox", "billing.outbox", "_o1"] {
            assert_eq!(good.parse::<TableName>().unwrap().qualified(), good);
        }
        for bad in ["", ".", "a.", "a.b.c", "1a", "a b", "A", "a;drop table x", "a-b", "ü", "a'"] {
            assert!(bad.parse::<TableName>().is_err(), "{bad:?} was accepted");
        }
        assert!("x".repeat(MAX_TABLE_NAME + 1).parse::<TableName>().is_err());
    }

    #[test]
    fn schema_and_table_make_a_channel_that_postgresql_takes() {
        let of = |schema: usize, table: usize| {
            format!("{}.{}", "s".repeat(schema), "t".repeat(table)).parse::<TableName>()
        };
        assert_eq!(of(17, 40).unwrap().channel().len(), MAX_CHANNEL);
        let refusal = of(18, 40).unwrap_err().to_string();
        assert!(refusal.contains("channel would have 64"), "{refusal}");
    }

    #[test]
    fn side_tables_stay_in_the_schema() {
        let name: TableName = "billing.outbox".parse().unwrap();
        assert_eq!(name.with_suffix("_shards"), "billing.outbox_shards");
        assert_eq!(name.bare(), "outbox");
        assert_eq!(name.channel(), "billing_outbox_wake");
    }
}
