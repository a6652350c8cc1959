//! The admin API over real connections, on real databases, checked with the tools of others. One program for
//! all: each more is linked for itself.

mod support;

mod api;

mod security;

mod server;

mod standards;

mod dashboard;
