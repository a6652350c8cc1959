//! The example `shop_tokio_postgres`, run as a process.

#[tokio::test]
async fn the_shop_on_tokio_postgres_delivers_what_it_commits() {
    crate::shops::on_postgres(env!("CARGO_BIN_EXE_shop_tokio_postgres")).await;
}
