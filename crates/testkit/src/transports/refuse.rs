//! What the server does not take, and what nobody may read of it.

use posthaste_core::transport::Outcome;

use super::{
    Destination, Options,
    fixture::{Topic, assert_clear, deliver, first_deliveries, impatient, publish, reason},
};

/// Nobody would choose these by chance.
const PAYLOAD: &str = "marker-payload-5f1c0de";
const PASSWORD: &str = "marker-password-5f1c0de";

/// One that is too large will always be: it is dead with both figures or a clear sentence, and
/// neither its batch nor the connection suffers.
pub async fn a_message_that_is_too_large_is_dead_and_the_next_one_goes_on(
    destination: &dyn Destination,
) {
    let topic = Topic::shared(destination).await;
    let Some((limit, size)) = topic.traits.too_large else { return };
    let options = Options { max_message: Some(limit), ..Options::default() };
    let transport = topic.transport(&options);
    let first = topic.event("a", "before");
    let large = topic.event("b", vec![b'x'; size]);
    let beside = topic.event("c", "beside");
    let next = topic.event("b", "after");
    let outcomes = publish(&*transport, &[first.clone(), large, beside.clone()]).await;
    assert_eq!(outcomes[0], Outcome::Delivered);
    let Outcome::Dead { error } = &outcomes[1] else { panic!("{:?}", outcomes[1]) };
    assert_clear(error);
    assert!(error.contains("large") || error.contains("bytes"), "{error}");
    assert_eq!(outcomes[2], Outcome::Delivered);
    deliver(&*transport, std::slice::from_ref(&next)).await;
    let received = first_deliveries(&topic.read().await);
    assert_eq!(received.len(), 3);
    for event in [first, beside, next] {
        assert!(received.contains(&event.event.id()));
    }
}

/// A wrong password is the operator's to mend: no attempt is burnt, and it is not shown.
pub async fn wrong_credentials_are_unavailable_and_stay_secret(destination: &dyn Destination) {
    let topic = Topic::shared(destination).await;
    if !topic.traits.credentials {
        return;
    }
    let options = Options { password: Some(PASSWORD.to_owned()), ..impatient() };
    let transport = topic.transport(&options);
    for outcome in publish(&*transport, &topic.events("a", 3)).await {
        let Outcome::Unavailable { error, .. } = outcome else { panic!("{outcome:?}") };
        assert_clear(&error);
        assert!(!error.contains(PASSWORD), "{error}");
        let says = error.to_lowercase();
        let words = ["password", "credential", "authenti", "authori", "login", "token"];
        assert!(words.iter().any(|word| says.contains(word)), "not clear: {error}");
    }
    assert!(topic.read().await.is_empty());
    deliver(&*topic.transport(&Options::default()), &topic.events("a", 1)).await;
}

/// Whatever fails, the text that is kept with the event and logged quotes nothing.
pub async fn no_error_quotes_the_payload_or_the_password(destination: &dyn Destination) {
    let topic = Topic::shared(destination).await;
    let mut said = Vec::new();
    let payload = |size: usize| PAYLOAD.repeat(size / PAYLOAD.len() + 1).into_bytes();
    if topic.traits.credentials {
        let options = Options { password: Some(PASSWORD.to_owned()), ..impatient() };
        let transport = topic.transport(&options);
        said.extend(transport.check().await.err().map(|error| format!("{error} {error:?}")));
        said.extend(failures(publish(&*transport, &[topic.event("a", PAYLOAD)]).await));
    }
    if let Some((limit, size)) = topic.traits.too_large {
        let options = Options { max_message: Some(limit), ..Options::default() };
        let transport = topic.transport(&options);
        said.extend(failures(publish(&*transport, &[topic.event("a", payload(size))]).await));
    }
    let server = destination.server();
    let nowhere = Topic::on(destination, &server);
    let options =
        Options { password: topic.traits.credentials.then(|| PASSWORD.to_owned()), ..impatient() };
    let transport = nowhere.transport(&options);
    said.extend(transport.check().await.err().map(|error| format!("{error} {error:?}")));
    said.extend(failures(publish(&*transport, &[nowhere.event("a", PAYLOAD)]).await));
    assert!(said.len() >= 2, "these are failures: {said:?}");
    for text in said {
        assert!(!text.contains(PAYLOAD) && !text.contains(PASSWORD), "{text}");
    }
}

fn failures(outcomes: Vec<Outcome>) -> impl Iterator<Item = String> {
    outcomes.into_iter().filter_map(|outcome| reason(&outcome).map(str::to_owned))
}
