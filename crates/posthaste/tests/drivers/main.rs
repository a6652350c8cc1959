//! Every driver keeps the same promises: what commits is delivered, what rolls back leaves
//! nothing, an id that comes twice is one event. On each route to the database, also through a
//! transaction pooler.

#[path = "../support/mod.rs"]
mod support;

mod adapter;

mod cases;

mod sqlx_09;

mod sqlx_08;

mod tokio_postgres;

mod diesel_async;

mod sea_orm;

mod wake;

use self::{
    adapter::{Adapter, Route},
    diesel_async::DieselAsync,
    sea_orm::SeaOrm,
    sqlx_08::Sqlx08,
    sqlx_09::Sqlx09,
    support::TestDatabase,
    tokio_postgres::{Deadpool, TokioPostgres},
};

/// Runs the cases with an adapter: those about transactions, and on the direct route the rest.
macro_rules! with {
    ($module:ident, $adapter:ty) => {
        mod $module {
            use super::*;

            with!(@transactions $adapter, Route::Direct);
            with!(@ $adapter, Route::Direct,
                the_same_id_again_gives_the_first_sequence,
                the_same_id_with_another_tenant_type_or_key_is_a_conflict,
                one_id_for_two_events_of_one_call_is_a_conflict,
                a_call_that_fails_leaves_none_of_its_events,
                a_conflict_of_one_event_ends_the_transaction_on_postgres,
                limits_are_checked_and_the_default_tenant_applies,
                the_trace_of_the_current_span_goes_along,
                many_events_keep_their_order,
                a_refusal_quotes_nothing,
            );
        }
    };
    ($module:ident, $adapter:ty, and $($case:ident),*) => {
        mod $module {
            use super::*;

            with!(@ $adapter, Route::Direct, $($case),*);
        }
    };
    ($module:ident, $adapter:ty, $route:expr) => {
        mod $module {
            use super::*;

            with!(@transactions $adapter, $route);
        }
    };
    (@transactions $adapter:ty, $route:expr) => {
        with!(@ $adapter, $route,
            what_commits_is_delivered,
            what_rolls_back_leaves_nothing,
            a_savepoint_that_rolls_back_leaves_nothing_of_its_part,
            a_raw_rollback_to_leaves_nothing_of_its_part,
        );
    };
    (@ $adapter:ty, $route:expr, $($case:ident),* $(,)?) => {
        $(
            #[tokio::test]
            async fn $case() {
                let on = <$adapter as Adapter>::Database::fixture().await;
                on.sql("create table {bare}_orders (number int not null)").await;
                let mut adapter = <$adapter as Adapter>::connect(&on, $route).await;
                cases::$case(&on, &mut adapter).await;
                drop(adapter);
                on.sql("drop table {bare}_orders").await;
                on.clean().await;
            }
        )*
    };
}

with!(sqlx_09_sqlite, Sqlx09<sqlx::Sqlite>);
with!(sqlx_09_mariadb, Sqlx09<sqlx::MySql>);
with!(sqlx_09_postgres, Sqlx09<sqlx::Postgres>);
with!(sqlx_09_pooler, Sqlx09<sqlx::Postgres>, Route::Pooler);
with!(sqlx_08_postgres, Sqlx08);
with!(sqlx_08_pooler, Sqlx08, Route::Pooler);
with!(tokio_postgres_direct, TokioPostgres);
with!(tokio_postgres_pooler, TokioPostgres, Route::Pooler);
with!(deadpool_direct, Deadpool);
with!(deadpool_pooler, Deadpool, Route::Pooler);
with!(diesel_async_direct, DieselAsync);
with!(diesel_async_pooler, DieselAsync, Route::Pooler);
with!(sea_orm_direct, SeaOrm);
with!(sea_orm_pooler, SeaOrm, Route::PoolerThatResets);
with!(sqlx_09_cut, Sqlx09<sqlx::Postgres>, and a_lost_connection_is_worth_another_try);
with!(sqlx_08_cut, Sqlx08, and a_lost_connection_is_worth_another_try);
with!(tokio_postgres_cut, TokioPostgres, and a_lost_connection_is_worth_another_try);
with!(deadpool_cut, Deadpool, and a_lost_connection_is_worth_another_try);
with!(sea_orm_cut, SeaOrm, and a_lost_connection_is_worth_another_try);
