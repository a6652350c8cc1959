//! TLS for clients: rustls with ring, named explicitly. The process may have another default, or
//! none.

use std::{path::Path, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};

/// Trusts the certificates in this file alone or, without one, those of the system. A system that has
/// none, as small containers, trusts the web's.
pub fn client_config(ca_file: Option<&Path>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = ca_file {
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(|_| {
                format!("{} holds a certificate that cannot be trusted", path.display())
            })?;
        }
    } else {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|_| "this build of TLS has no protocol version".to_owned())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

/// The same as PEM, for a client that takes nothing else and trusts the web's by itself.
#[cfg(feature = "pulsar")]
pub(crate) fn trusted_pem(ca_file: Option<&Path>) -> Result<Vec<u8>, String> {
    let trusted = match ca_file {
        Some(path) => certificates(path)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let mut pem = String::new();
    for certificate in trusted {
        pem.push_str("-----BEGIN CERTIFICATE-----\n");
        pem.push_str(&crate::message::base64(&certificate));
        pem.push_str("\n-----END CERTIFICATE-----\n");
    }
    Ok(pem.into_bytes())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let unreadable = |_| format!("{} cannot be read as PEM certificates", path.display());
    let certificates = CertificateDer::pem_file_iter(path)
        .map_err(unreadable)?
        .collect::<Result<Vec<_>, _>>()
        .map_err(unreadable)?;
    if certificates.is_empty() {
        return Err(format!("{} holds no certificate", path.display()));
    }
    Ok(certificates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_certificates_is_named() {
        let error = client_config(Some(Path::new("/no/such/ca.pem"))).unwrap_err();
        assert!(error.contains("/no/such/ca.pem"), "{error}");
    }
}
