//! The life of the server, as each new connection finds out.

use posthaste_testkit::proxy::{Answer, Proxy};

use super::*;

#[tokio::test]
async fn a_pause_while_connecting_does_not_look_like_another_server() {
    const LIFE: &str = "select token, cast(first_epoch as signed) from {life} where id = 1";

    let url = mariadb_url();
    let server = url.rsplit('@').next().unwrap().split('/').next().unwrap();
    let proxy = Proxy::start(server).await.unwrap();
    let outbox =
        Outbox::over(pool(&url.replace(server, &proxy.address().to_string()), 10).await).await;
    outbox.commit(&[event("first")]).await;
    let (relay, _) = outbox.hold().await;
    let life = async || -> (String, i64) {
        let sql = AssertSqlSafe(outbox.tables.fill(LIFE));
        sqlx::query_as(sql).fetch_one(&outbox.pool).await.unwrap()
    };
    let before = life().await;
    let page = outbox.store.read_on(&SHARDS, &Position::default(), Limit::rows(10)).await.unwrap();

    for after in [0, 1] {
        // A read that is given up: the next one has a connection of its own.
        let given_up = outbox.store.read_on(&SHARDS, &page.position, Limit::rows(10));
        assert!(tokio::time::timeout(Duration::ZERO, given_up).await.is_err());
        let time = Answer { to: "'1970-01-01', utc_timestamp(6)", after };
        let delayed = proxy.delay(time, Duration::from_secs(3));
        let page = outbox.store.read_on(&SHARDS, &page.position, Limit::rows(10)).await;
        delayed.await.unwrap();
        assert!(page.is_ok(), "{page:?}");
        outbox.store.acquire(&relay, &SHARDS).await.unwrap();
        assert_eq!(life().await, before);
    }
    outbox.drop().await;
}
