//! The destinations of Posthaste: one file each, one feature each, all with the same anatomy: a
//! struct that holds the connection, `new` or `connect`, and the contract of
//! [`Transport`](posthaste_core::transport::Transport).

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "wire")]
pub mod message;

#[cfg(feature = "wire")]
pub mod url;

// Not every destination beyond this process needs it: some clients reconnect by themselves.
#[cfg(feature = "wire")]
#[allow(dead_code, reason = "each destination that needs it is a feature")]
mod connection;

#[cfg(any(feature = "mqtt", feature = "nats", feature = "rabbitmq", feature = "redis"))]
mod apart;

#[cfg(feature = "tls")]
pub mod tls;

#[cfg(any(feature = "nats", feature = "rabbitmq"))]
mod full;

#[cfg(any(feature = "nats", feature = "redis"))]
mod turns;

#[cfg(any(feature = "bus", feature = "handlers"))]
mod receiver;

#[cfg(feature = "bus")]
pub mod bus;

#[cfg(feature = "handlers")]
pub mod handlers;

#[cfg(feature = "http")]
pub mod http;

#[cfg(feature = "kafka")]
pub mod kafka;

#[cfg(feature = "log")]
pub mod log;

#[cfg(feature = "memory")]
pub mod memory;

#[cfg(feature = "mqtt")]
pub mod mqtt;

#[cfg(feature = "nats")]
pub mod nats;

#[cfg(feature = "pulsar")]
pub mod pulsar;

#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;

#[cfg(feature = "redis")]
pub mod redis;

#[cfg(feature = "wire")]
mod registry;

#[cfg(feature = "wire")]
pub use self::registry::open;
