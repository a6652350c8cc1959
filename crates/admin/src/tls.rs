//! TLS for the server: rustls with ring, named explicitly.

use std::sync::Arc;

use posthaste_core::{Error, Result};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

use crate::Tls;

pub(crate) type Acceptor = TlsAcceptor;

/// Reads the certificate and its key. Errors name the file and quote nothing of it.
pub(crate) fn acceptor(Tls { cert, key }: &Tls) -> Result<Acceptor> {
    let unreadable = |what, path: &std::path::Path| {
        Error::invalid(format!("{what} {} cannot be read as PEM", path.display()))
    };
    let certificates = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|_| unreadable("admin.tls_cert", cert))?;
    if certificates.is_empty() {
        return Err(Error::invalid(format!(
            "admin.tls_cert {} holds no certificate",
            cert.display()
        )));
    }
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|_| unreadable("admin.tls_key", key))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|_| Error::invalid("this build of TLS has no protocol version"))?
        .with_no_client_auth()
        .with_single_cert(certificates, private)
        .map_err(|_| {
            Error::invalid(format!(
                "admin.tls_key {} is not the key of admin.tls_cert {}",
                key.display(),
                cert.display()
            ))
        })?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
