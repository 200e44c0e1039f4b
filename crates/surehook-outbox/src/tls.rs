//! How this crate's connections trust: the certificates of the system (`SSL_CERT_FILE` and `SSL_CERT_DIR` are honoured).
//! Reads them from disk; opens no connection.

/// A client configuration without a certificate of our own.
pub(crate) fn client_config() -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in rustls_native_certs::load_native_certs().certs {
        // A certificate that rustls cannot read cannot vouch for anybody: it is passed over.
        let _ = roots.add(certificate);
    }
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap_or_else(|error| unreachable!("ring offers the default protocol versions: {error}"))
        .with_root_certificates(roots)
        .with_no_client_auth()
}
