//! Every example, run as a user runs it. One program for all: each more is linked for itself.

mod support;

mod run;

mod shops;

mod consumer_with_inbox;

#[cfg(feature = "kafka")]
mod consumer_with_inbox_kafka;

mod ddd;

mod first_service;

mod module_tables;

mod payments;

mod several_databases;

mod shop;

mod shop_diesel_async;

mod shop_sea_orm;

mod shop_tokio_postgres;

mod writer_only;
