//! NATS: what every transport must do, and what only this one promises.

use std::{env, fs, path::Path, process::Command, sync::Arc};

use async_trait::async_trait;
use posthaste_core::{Result, transport::Transport};
use posthaste_testkit::transports::{
    Destination, Options, Received, Server, Traits, consume, consumer,
};
use posthaste_transports::nats::{Nats, NatsConfig};

struct Subject;

async fn subject() -> Option<Subject> {
    env::var("POSTHASTE_TEST_NATS").ok().map(|_| Subject)
}

posthaste_testkit::transport_conformance!(subject);

#[async_trait]
impl Destination for Subject {
    fn traits(&self) -> Traits {
        // The limit is the server's own: 2 MB.
        Traits { binding: Some("http"), too_large: Some((0, 2 * 1024 * 1024)), ..Traits::default() }
    }

    fn url(&self) -> String {
        env::var("POSTHASTE_TEST_NATS").expect("the subject was made")
    }

    fn server(&self) -> Server {
        private("authorization { user: me, password: right }", "me:right@")
    }

    fn transport(&self, url: &str, options: &Options) -> Result<Arc<dyn Transport>> {
        Ok(Arc::new(Nats::new(NatsConfig::from_url(&options.on(url))?)?))
    }

    async fn prepare(&self, url: &str, topic: &str) {
        let _: Vec<Received> = consume(consumer("nats"), &["prepare", url, topic]).await;
    }

    async fn read(&self, url: &str, topic: &str) -> Vec<Received> {
        consume(consumer("nats"), &["read", url, topic]).await
    }
}

/// A server of its own, with these lines in its configuration.
fn private(configuration: &'static str, login: &'static str) -> Server {
    let server = env::var("POSTHASTE_TEST_NATS_SERVER").expect("the path of nats-server");
    Server::new(
        move |port| format!("nats://{login}127.0.0.1:{port}"),
        move |port, folder| command(&server, port, folder, configuration),
    )
    .ready_when("Server is ready")
}

fn command(server: &str, port: u16, folder: &Path, configuration: &str) -> Command {
    let path = folder.join("server.conf");
    let text = format!(
        "listen: 127.0.0.1:{port}\n\
         jetstream {{ store_dir: \"{}\", max_file_store: 1GB }}\n{configuration}\n",
        folder.join("data").display()
    );
    fs::write(&path, text).expect("the server's configuration can be written");
    let mut command = Command::new(server);
    command.arg("--config").arg(path);
    command
}
