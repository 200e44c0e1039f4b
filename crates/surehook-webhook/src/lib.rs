//! Signed webhooks: what a sender puts on the wire and how a receiver checks it.
//!
//! Nothing in this crate reads a clock, a socket or a file: time and bytes come in as values.
//!
//! A delivery is an HTTP `POST` of JSON. [`envelope::headers`] makes its headers; [`Verifier`] checks them on the other
//! side; a [`SeenStore`] lets a repeated delivery count once:
//!
//! ```
//! use surehook_webhook::{Secret, Secrets, Verifier, envelope};
//! use uuid::Uuid;
//!
//! let secrets = Secrets::from(Secret::parse("correct horse battery staple")?);
//! let id = Uuid::from_u128(7);
//! let body = br#"{"ref":"refs/heads/main"}"#;
//! let sent = envelope::headers(id, 1_800_000_000, body, &secrets);
//!
//! let received = sent.iter().map(|(name, value)| (*name, value.as_bytes()));
//! let verified = Verifier::new(secrets).verify(received, body, 1_800_000_002)?;
//! assert_eq!(verified.webhook_id, id.to_string());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod envelope;
pub mod receiver;
pub mod secret;
pub mod signature;
pub mod store;

pub use receiver::{Refused, Verified, Verifier};
pub use secret::{Secret, SecretError, Secrets};
pub use store::{BodyHash, Recorded, SeenStore, body_hash};
