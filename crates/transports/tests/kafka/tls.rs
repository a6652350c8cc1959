//! Over TLS: a proxy that ends it stands before a server that speaks none.

use std::{fs, path::Path, process::Command, sync::Arc};

use posthaste_core::transport::{Outcome, Transport};
use posthaste_testkit::transports::{Destination as _, Server};
use posthaste_transports::kafka::{Kafka, KafkaConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
        server::WebPkiClientVerifier,
    },
};

use super::{
    Subject, error,
    support::{certificates, envelope, given},
    unique,
};

/// A server that names this port as its address, which is the proxy's.
async fn server_behind(proxy: u16, options: &'static [&'static str]) -> Option<Server> {
    let program = given("POSTHASTE_TEST_KAFKA_SERVER")?;
    let mut server = Server::new(
        |port| format!("kafka://127.0.0.1:{port}"),
        move |port, _| {
            let mut command = Command::new(&program);
            command
                .args(["broker", "--listener-url", &format!("tcp://127.0.0.1:{port}")])
                .args(["--advertised-listener-url", &format!("tcp://127.0.0.1:{proxy}")])
                .args(["--storage-engine", "memory://tansu/"])
                .args(options);
            command
        },
    );
    server.start().await;
    Some(server)
}

/// Ends TLS: shows the folder's certificate, and takes only clients whose certificate the same authority signed.
fn end_tls(listener: TcpListener, folder: &Path, server: u16) {
    let certificates = |name: &str| -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_file_iter(folder.join(name)).unwrap().map(Result::unwrap).collect()
    };
    let provider = Arc::new(ring::default_provider());
    let mut trusted = RootCertStore::empty();
    trusted.add_parsable_certificates(certificates("ca.pem"));
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(trusted), Arc::clone(&provider))
            .build()
            .unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(
            certificates("cert.pem"),
            PrivateKeyDer::from_pem_file(folder.join("key.pem")).unwrap(),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut client = acceptor.accept(client).await.ok()?;
                let mut server = TcpStream::connect(("127.0.0.1", server)).await.ok()?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await.ok()
            });
        }
    });
}

#[tokio::test]
async fn brokers_and_clients_prove_who_they_are() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let Some(server) = server_behind(port, &[]).await else { return };
    let folder = server.folder().to_owned();
    certificates(&folder);
    let strangers = folder.join("strangers");
    fs::create_dir(&strangers).unwrap();
    certificates(&strangers);
    end_tls(listener, &folder, server.port());

    let topic = unique("tls");
    let file = |name: &str| folder.join(name).display().to_string();
    // The independent client uses the same files.
    let place = format!(
        "kafka://127.0.0.1:{port}?security.protocol=ssl&ssl.ca.location={}\
         &ssl.certificate.location={}&ssl.key.location={}",
        file("ca.pem"),
        file("cert.pem"),
        file("key.pem"),
    );
    Subject.prepare(&place, &topic).await;

    let kafka = |parameters: &[(&str, &str)]| {
        let mut url = format!("kafka+ssl://127.0.0.1:{port}?connect_timeout=3s");
        for (name, value) in parameters {
            url = format!("{url}&{name}={}", file(value));
        }
        Kafka::new(KafkaConfig::from_url(&url).unwrap()).unwrap()
    };
    let ours = [("cert_file", "cert.pem"), ("key_file", "key.pem")];
    let batch = [envelope(&topic, "a"), envelope(&topic, "b")];

    let proven = kafka(&[("ca_file", "ca.pem"), ours[0], ours[1]]);
    assert_eq!(proven.publish(&batch).await, [Outcome::Delivered, Outcome::Delivered]);
    assert!(proven.check().await.unwrap().contains("brokers: 1"));
    assert_eq!(Subject.read(&place, &topic).await.len(), 2);

    let untrusted = [("ca_file", "strangers/ca.pem"), ours[0], ours[1]];
    let unknown = [
        ("ca_file", "ca.pem"),
        ("cert_file", "strangers/cert.pem"),
        ("key_file", "strangers/key.pem"),
    ];
    let silent = [("ca_file", "ca.pem")];
    let theirs = "its certificate is not trusted";
    let mine = "refused our certificate, or asks for one";
    for (refused, why) in [(&untrusted[..], theirs), (&unknown, mine), (&silent, mine)] {
        for outcome in kafka(refused).publish(&batch).await {
            assert!(matches!(outcome, Outcome::Unavailable { .. }), "{refused:?}: {outcome:?}");
            assert!(error(&outcome).contains(why), "{refused:?}: {outcome:?}");
        }
    }
    let url = format!(
        "kafka+ssl://localhost:{port}?ca_file={}&cert_file={}&key_file={}&connect_timeout=3s",
        file("ca.pem"),
        file("cert.pem"),
        file("key.pem"),
    );
    let misnamed = Kafka::new(KafkaConfig::from_url(&url).unwrap()).unwrap();
    let outcome = misnamed.publish(&batch[..1]).await.remove(0);
    assert!(error(&outcome).contains(theirs), "a certificate for another name: {outcome:?}");
    let missing = kafka(&[("ca_file", "ca.pem"), ("cert_file", "none.pem"), ours[1]]);
    let outcome = missing.publish(&batch[..1]).await.remove(0);
    assert!(error(&outcome).contains("cert_file"), "{outcome:?}");
    assert_eq!(Subject.read(&place, &topic).await.len(), 2, "whoever was refused sent nothing");
}

#[tokio::test]
async fn scram_is_spoken_and_an_unknown_user_is_told_as_a_refused_login() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap().port();
    let Some(server) = server_behind(proxy, &["--authentication"]).await else { return };
    let folder = server.folder().to_owned();
    certificates(&folder);
    end_tls(listener, &folder, server.port());
    let file = |name: &str| folder.join(name).display().to_string();
    let files = format!(
        "&ca_file={}&cert_file={}&key_file={}",
        file("ca.pem"),
        file("cert.pem"),
        file("key.pem")
    );
    for (scheme, port, files) in [("kafka", server.port(), ""), ("kafka+ssl", proxy, &*files)] {
        let login = "sasl=scram-sha-256&connect_timeout=3s";
        let url = format!("{scheme}://me:hush@127.0.0.1:{port}?{login}{files}");
        let kafka = Kafka::new(KafkaConfig::from_url(&url).unwrap()).unwrap();
        let outcome = kafka.publish(&[envelope("any", "a")]).await.remove(0);
        assert!(matches!(outcome, Outcome::Unavailable { .. }), "{scheme}: {outcome:?}");
        assert!(error(&outcome).contains("refused the login"), "{scheme}: {outcome:?}");
        assert!(!error(&outcome).contains("hush"), "{scheme}: {outcome:?}");
    }
}
