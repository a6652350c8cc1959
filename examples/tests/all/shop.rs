//! The example `shop`, run as a process.

#[tokio::test]
async fn the_shop_on_postgres_delivers_what_it_commits() {
    crate::shops::on_postgres(env!("CARGO_BIN_EXE_shop")).await;
}

#[test]
fn the_shop_on_sqlite_delivers_what_it_commits() {
    let folder = std::env::temp_dir().join(format!("posthaste-shop-{}", uuid::Uuid::now_v7()));
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("shop.db");
    let arguments = ["--sqlite", file.to_str().unwrap()];
    crate::shops::Shop::open(env!("CARGO_BIN_EXE_shop"), &arguments).keeps_its_promises();
    std::fs::remove_dir_all(&folder).unwrap();
}
