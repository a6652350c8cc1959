//! The example `shop_sea_orm`, run as a process.

#[tokio::test]
async fn the_shop_on_sea_orm_delivers_what_it_commits() {
    crate::shops::on_postgres(env!("CARGO_BIN_EXE_shop_sea_orm")).await;
}
