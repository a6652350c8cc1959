//! The server itself: TLS, health, a stop in order.
