//! One line in Cargo.toml is enough to enqueue: what a writer needs besides is given on by `posthaste`.

/// Names no other crate.
mod writer {
    use posthaste::{
        Dialect, Enqueued, Event, Outbox,
        jiff::Timestamp,
        sqlx::{self, Sqlite, SqlitePool},
        stores::Tables,
        uuid::Uuid,
    };

    pub async fn enqueue(url: &str) -> Result<Enqueued, Box<dyn std::error::Error + Send + Sync>> {
        let pool = SqlitePool::connect(url).await?;
        let tables = Tables::new("outbox_event".parse()?);
        Sqlite::store(pool.clone(), tables.clone()).migrate(None).await?;
        let outbox = Outbox::new(tables.name().clone());
        let mut tx = outbox.begin(&pool).await?;
        sqlx::query("create table orders (id int)").execute(tx.connection()).await?;
        let event = Event::builder("OrderPlaced")
            .id(Uuid::now_v7())
            .occurred_at(Timestamp::now())
            .raw_json("{}")
            .build()?;
        let enqueued = outbox.enqueue(&mut tx, event).await?;
        tx.commit().await?;
        Ok(enqueued.expect("no hook suppresses it"))
    }
}

#[tokio::test]
async fn a_writer_names_no_crate_but_posthaste() {
    let file = std::env::temp_dir().join(format!("posthaste-{}.db", uuid::Uuid::now_v7()));
    let enqueued = writer::enqueue(&format!("sqlite:{}?mode=rwc", file.display())).await;
    std::fs::remove_file(&file).unwrap();
    assert_eq!(enqueued.unwrap().sequence, 1);
}
