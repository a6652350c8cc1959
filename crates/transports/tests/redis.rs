//! Redis Streams: what every transport must do, and what only this one promises.

use std::{env, process::Command, sync::Arc};

use async_trait::async_trait;
use posthaste_core::{Result, transport::Transport};
use posthaste_testkit::transports::{
    Destination, Options, Received, Server, Traits, consume, consumer,
};
use posthaste_transports::redis::{Redis, RedisConfig};

struct Subject;

async fn subject() -> Option<Subject> {
    env::var("POSTHASTE_TEST_REDIS").ok().map(|_| Subject)
}

posthaste_testkit::transport_conformance!(subject);

#[async_trait]
impl Destination for Subject {
    fn traits(&self) -> Traits {
        Traits { keys: true, ..Traits::default() }
    }

    fn url(&self) -> String {
        env::var("POSTHASTE_TEST_REDIS").expect("the subject was made")
    }

    fn server(&self) -> Server {
        private("redis", ":right@", &["--requirepass", "right"])
    }

    fn transport(&self, url: &str, options: &Options) -> Result<Arc<dyn Transport>> {
        let mut config = RedisConfig::from_url(&options.on(url))?;
        if let Some(limit) = options.max_message {
            config.max_message = limit;
        }
        Ok(Arc::new(Redis::new(config)?))
    }

    async fn prepare(&self, _: &str, _: &str) {} // the first entry makes the stream

    async fn read(&self, url: &str, topic: &str) -> Vec<Received> {
        consume(consumer("redis"), &["read", url, topic]).await
    }
}

/// A server of its own, with these options, whose data survives its death.
fn private(scheme: &'static str, login: &'static str, options: &'static [&'static str]) -> Server {
    let server = env::var("POSTHASTE_TEST_REDIS_SERVER").expect("the path of redis-server");
    Server::new(
        move |port| format!("{scheme}://{login}127.0.0.1:{port}"),
        move |port, folder| {
            let mut command = Command::new(&server);
            command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""]);
            command.args(["--appendonly", "yes", "--dir"]).arg(folder).args(options);
            command
        },
    )
    .ready_when("Ready to accept connections")
}
