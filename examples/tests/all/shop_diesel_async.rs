//! The example `shop_diesel_async`, run as a process.

#[tokio::test]
async fn the_shop_on_diesel_async_delivers_what_it_commits() {
    crate::shops::on_postgres(env!("CARGO_BIN_EXE_shop_diesel_async")).await;
}
