//! The destinations of Posthaste: one file each, one feature each, all with the same anatomy: a
//! struct that holds the connection, `new` or `connect`, and the contract of
//! [`Transport`](posthaste_core::transport::Transport).

#[cfg(any(feature = "bus", feature = "handlers"))]
mod receiver;

#[cfg(feature = "bus")]
pub mod bus;

#[cfg(feature = "handlers")]
pub mod handlers;

#[cfg(feature = "log")]
pub mod log;

#[cfg(feature = "memory")]
pub mod memory;
