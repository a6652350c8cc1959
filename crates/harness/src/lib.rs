//! The crash harness: real processes that write and deliver, killed at random moments, and a
//! judgement of what they left behind.
//!
//! ```text
//!  test ──start, kill, pause──► posthaste-harness writer ──► database ◄── posthaste-harness relay
//!   │                                │ journal                               journal │
//!   └──────────────── judge ◄────────┴───────────────────────────────────────────────┘
//! ```
//!
//! Every process appends what it did to a journal, with times of the machine's one monotonic clock
//! and in single writes, so that a kill at any instruction leaves a true account. The judge reads
//! the journals and asks the checker of `posthaste-testkit`; it adds two stricter questions: was an
//! event ever *handed over* before its predecessor was acknowledged, and does every repeat follow
//! a delivery by a relay that was killed?
//!
//! Processes say how they stand on their standard output, so that tests wait on signals. All that a
//! test starts is ended by its process id, also when the test panics; and a process whose parent
//! has gone ends by itself.

pub mod clock;

pub mod options;

pub mod journal;

pub mod message;

pub mod process;

pub mod fixture;

pub mod judge;
