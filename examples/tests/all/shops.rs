//! Runs a shop as a process of its own, places orders over HTTP and reads what its relay says.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

/// Nothing here takes so long unless it hangs.
const LIMIT: Duration = Duration::from_mins(1);

pub struct Shop {
    process: Child,
    lines: Receiver<String>,
    address: String,
}

impl Shop {
    pub fn open(program: &str, arguments: &[&str]) -> Self {
        let mut process =
            Command::new(program).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut shop = Self { process, lines, address: String::new() };
        let line = shop.line();
        shop.address = line.replace("listening on http://", "");
        shop
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(LIMIT).expect("the shop says nothing")
    }

    /// Posts an order and gives the status and the body.
    fn post(&self, quantity: u32) -> (u16, String) {
        let body = serde_json::json!({ "item": "book", "quantity": quantity }).to_string();
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        write!(
            stream,
            "POST /orders HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.trim().to_owned())
    }

    /// Orders that are placed are delivered, in their order; one that is refused leaves nothing.
    pub fn keeps_its_promises(mut self) {
        for _ in 0..3 {
            let (status, _) = self.post(0);
            assert_eq!(status, 422);
            let (status, order) = self.post(2);
            assert_eq!(status, 201, "{order}");
            let id = order.strip_prefix("order ").unwrap();
            let delivered = self.line();
            assert!(delivered.contains(&format!("OrderPlaced Order/{id}")), "{delivered}");
        }
        // Interrupted, it ends in order.
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-s", "INT", &id]).status().unwrap().success());
        assert!(self.process.wait().unwrap().success());
        assert_eq!(self.lines.try_iter().collect::<Vec<_>>(), [""; 0], "nothing else was sent");
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a shop on PostgreSQL in a schema of its own.
pub async fn on_postgres(program: &str) {
    let url = std::env::var("POSTHASTE_TEST_POSTGRES")
        .expect("POSTHASTE_TEST_POSTGRES is not set: run the tests with scripts/test");
    let schema = format!("shop_{:016x}", Uuid::now_v7().as_u128() as u64);
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let create = AssertSqlSafe(format!("create schema {schema}"));
    sqlx::raw_sql(create).execute(&mut connection).await.unwrap();
    let own = format!("{url}?options=-csearch_path%3D{schema}");
    let program = program.to_owned();
    let checked =
        tokio::task::spawn_blocking(move || Shop::open(&program, &[&own]).keeps_its_promises())
            .await;
    let drop = AssertSqlSafe(format!("drop schema {schema} cascade"));
    sqlx::raw_sql(drop).execute(&mut connection).await.unwrap();
    checked.unwrap();
}
