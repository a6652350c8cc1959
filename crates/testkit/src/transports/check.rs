//! What an operator asks before anything is published.

use std::time::{Duration, Instant};

use super::{
    Destination, Options,
    fixture::{Topic, assert_clear, impatient},
};

/// A pause after a failure does not take longer.
const PATIENCE: Duration = Duration::from_mins(1);

/// A sentence about the server, and nothing is left there.
pub async fn check_tells_what_it_found_and_publishes_nothing(destination: &dyn Destination) {
    let topic = Topic::shared(destination).await;
    let transport = topic.transport(&Options::default());
    let found = transport.check().await.unwrap();
    assert_clear(&found);
    assert!(!transport.name().is_empty());
    assert!(topic.read().await.is_empty());
}

/// Nobody is there: an error that may pass.
pub async fn check_fails_clearly_while_the_server_is_down(destination: &dyn Destination) {
    let mut server = destination.server();
    let topic = Topic::on(destination, &server);
    let transport = topic.transport(&impatient());
    let error = transport.check().await.unwrap_err();
    assert_clear(&error.to_string());
    assert!(error.is_transient(), "trying again may help: {error}");
    server.start().await;
    topic.prepare().await;
    // A pause after a failure may still be running.
    let deadline = Instant::now() + PATIENCE;
    let mut outcome = transport.check().await;
    while outcome.as_ref().is_err_and(posthaste_core::Error::is_transient) {
        assert!(Instant::now() < deadline, "it stays so: {outcome:?}");
        tokio::time::sleep(super::fixture::PAUSE).await;
        outcome = transport.check().await;
    }
    assert_clear(&outcome.unwrap());
}

/// It says that it is the credentials, without them.
pub async fn check_fails_clearly_with_wrong_credentials(destination: &dyn Destination) {
    let topic = Topic::shared(destination).await;
    if !topic.traits.credentials {
        return;
    }
    let options = Options { password: Some("marker-5f1c0de".to_owned()), ..impatient() };
    let error = topic.transport(&options).check().await.unwrap_err().to_string();
    assert_clear(&error);
    assert!(!error.contains("marker-5f1c0de"), "{error}");
}
