//! Ordering keys and shards: the same arithmetic in every database and language.

use std::fmt;

use sha2::{Digest, Sha256};
use uuid::Uuid;

/// An ordering key as lanes know it: the first 8 bytes of its SHA-256, big-endian.
///
/// Two keys that collide (about 1 in 10¹⁹ for a pair) only share a lane, which costs a little
/// parallelism and no promise.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub i64);

impl Key {
    /// The key of the one lane that holds everything under the ordering `global`. It is in no shard.
    pub const OF_ALL: Self = Self(0);

    /// The key of this text.
    pub fn of(ordering_key: &str) -> Self {
        let digest = Sha256::digest(ordering_key.as_bytes());
        let mut head = [0; 8];
        head.copy_from_slice(&digest[..8]);
        Self(i64::from_be_bytes(head))
    }

    /// The shard of this key's events.
    pub fn shard(self, shards: u16) -> u16 {
        ((self.0 as u64 >> 32) % u64::from(shards.max(1))) as u16
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:016x})", self.0)
    }
}

/// Tenant, aggregate type and aggregate id in one text. Each part is prefixed with its length in
/// bytes: `("a", "bc", …)` and `("ab", "c", …)` stay apart. The databases compute the same text.
pub fn derived_key(tenant: &str, aggregate_type: &str, aggregate_id: &str) -> String {
    // By hand: a relay computes it for every event, and formatting costs more than the hash.
    let parts = [tenant, aggregate_type, aggregate_id];
    let length = parts.iter().map(|part| part.len() + 4).sum();
    let mut key = String::with_capacity(length);
    for part in parts {
        push_number(&mut key, part.len());
        key.push(':');
        key.push_str(part);
    }
    key
}

fn push_number(text: &mut String, number: usize) {
    if number >= 10 {
        push_number(text, number / 10);
    }
    text.push(char::from(b'0' + (number % 10) as u8));
}

/// What the shard is computed from: the first 4 bytes of `sha256(ordering key)`, or of
/// `sha256(event id)` when the event has none, big-endian.
pub fn shard_hash(ordering_key: Option<&str>, event_id: Uuid) -> u32 {
    let digest = match ordering_key {
        Some(key) => Sha256::digest(key.as_bytes()),
        None => Sha256::digest(event_id.hyphenated().to_string().as_bytes()),
    };
    let mut head = [0; 4];
    head.copy_from_slice(&digest[..4]);
    u32::from_be_bytes(head)
}

/// The shard of an event: its [`shard_hash`] modulo the number of shards.
pub fn shard_of(ordering_key: Option<&str>, event_id: Uuid, shards: u16) -> u16 {
    (shard_hash(ordering_key, event_id) % u32::from(shards.max(1))) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_separator_inside_a_part_does_not_make_two_keys_equal() {
        assert_ne!(derived_key("a", "b:c", "d"), derived_key("a:b", "c", "d"));
        assert_ne!(derived_key("", "ab", "c"), derived_key("a", "b", "c"));
    }

    #[test]
    fn lengths_are_decimal_and_count_bytes() {
        let id = "ä".repeat(60);
        assert_eq!(derived_key("", "0123456789", &id), format!("0:10:0123456789120:{id}"));
    }

    #[test]
    fn the_shard_is_what_any_language_computes() {
        // sha256sum prints 2652a561cbde04b0…; the databases' own arithmetic is held to the same
        // function by the conformance suite.
        let key = derived_key("acme", "Order", "42");
        assert_eq!(key, "4:acme5:Order2:42");
        assert_eq!(shard_hash(Some(&key), Uuid::nil()), 0x2652_a561);
        assert_eq!(Key::of(&key).0, 0x2652_a561_cbde_04b0);
        assert_eq!(shard_of(Some(&key), Uuid::nil(), 64), 33);
        assert_eq!(shard_of(None, Uuid::nil(), 1), 0);
    }
}
