//! What the tests of several destinations need.

#![allow(dead_code, reason = "each test program takes what it needs")]

use std::{env, fs, path::Path};

use posthaste_core::{Envelope, Event, EventBuilder};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// What `scripts/servers` offers under this name, or `None`, and said so.
pub fn given(variable: &str) -> Option<String> {
    let value = env::var(variable).ok();
    if value.is_none() {
        eprintln!("skipped: {variable} is not set");
    }
    value
}

/// An event for this topic, as a relay would hand it over.
pub fn envelope(topic: &str, key: &str) -> Envelope {
    built(Event::builder("OrderPlaced").aggregate("Order", key).topic(topic))
}

/// The same from what the test set.
pub fn built(builder: EventBuilder) -> Envelope {
    enveloped(builder.bytes("text/plain", "hello"))
}

/// The same with the payload that the test set.
pub fn enveloped(builder: EventBuilder) -> Envelope {
    let event = builder.build().unwrap();
    Envelope {
        sequence: 1,
        attempts: 0,
        replay: 0,
        created_at: event.occurred_at(),
        topic: None,
        event,
    }
}

/// A name that no other test uses.
pub fn unique_name(what: &str) -> String {
    format!("{what}-{:016x}", fastrand::u64(..))
}

/// Writes `ca.pem`, and `cert.pem` with `key.pem` for a server on the loopback address.
pub fn certificates(folder: &Path) {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // OpenSSL takes a certificate that names itself as its issuer for one that signed itself.
    authority.distinguished_name.push(DnType::CommonName, "the tests' authority");
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()])
        .unwrap()
        .signed_by(&key, &authority)
        .unwrap();
    fs::write(folder.join("ca.pem"), authority.pem()).unwrap();
    fs::write(folder.join("cert.pem"), certificate.pem()).unwrap();
    fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
}
