//! What the tests of several destinations need.

#![allow(dead_code, reason = "each test program takes what it needs")]

use std::{fs, path::Path};

use posthaste_core::{Envelope, Event, EventBuilder};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// An event for this topic, as a relay would hand it over.
pub fn envelope(topic: &str, key: &str) -> Envelope {
    built(Event::builder("OrderPlaced").aggregate("Order", key).topic(topic))
}

/// The same from what the test set.
pub fn built(builder: EventBuilder) -> Envelope {
    let event = builder.bytes("text/plain", "hello").build().unwrap();
    Envelope {
        sequence: 1,
        attempts: 0,
        replay: 0,
        created_at: event.occurred_at(),
        topic: None,
        event,
    }
}

/// Writes `ca.pem`, and `cert.pem` with `key.pem` for a server on the loopback address.
pub fn certificates(folder: &Path) {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
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
