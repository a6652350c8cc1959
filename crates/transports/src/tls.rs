//! TLS for clients that take a configuration of ours: rustls with ring, the web's roots and, if
//! there is one, an authority of the operator's own.

use std::{path::Path, sync::Arc};

use posthaste_core::{Error, Result};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};

/// A configuration that trusts the web's roots, and those in the file.
pub(crate) fn client_config(ca_file: Option<&Path>) -> Result<ClientConfig> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = ca_file {
        let refused = |why: &str| Error::invalid(format!("the ca_file {} {why}", path.display()));
        let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect)
            .map_err(|_| refused("cannot be read as PEM certificates"))?;
        let (added, _) = roots.add_parsable_certificates(certificates);
        if added == 0 {
            return Err(refused("holds no certificate that can be used"));
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::invalid("TLS cannot be set up").with_source(error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ca_file_without_certificates_is_refused_by_its_name() {
        for path in ["/no/such/ca.pem", "Cargo.toml"] {
            let error = client_config(Some(Path::new(path))).unwrap_err().to_string();
            assert!(error.contains(path), "{error}");
        }
    }
}
