//! The room of ciphers: everything of the house that turns plain into sealed and back, and nothing
//! else.
//!
//! | module | what | standard |
//! |---|---|---|
//! | [`xts`] | AES-256-XTS over whole data units, for the data path | IEEE 1619, NIST SP 800-38E |
//! | [`guest`] | the same on guest memory, which lies in pieces and changes meanwhile | |
//! | [`aead`] | AES-256-GCM, for envelopes | NIST SP 800-38D |
//! | [`bulk`] | AES-256-GCM of long texts in place, for records of guest data | NIST SP 800-38D |
//! | [`gcm`] | AES-GCM with others' nonces, for what clients of the key server have encrypted | NIST SP 800-38D |
//! | [`key_wrap`] | AES-256 KW and KWP | RFC 3394, RFC 5649, NIST SP 800-38F |
//! | [`kdf`] | HKDF-SHA256, Argon2id | RFC 5869, RFC 9106 |
//! | [`mac`] | HMAC-SHA256, SHA-256 | RFC 2104, FIPS 180-4 |
//! | [`block_tag`] | HMAC-SHA256 of every block of a disk | FIPS 198-1, NIST SP 800-107 |
//! | [`random`] | what new keys are made of | NIST SP 800-90A to C |
//! | [`module`] | whose code all of this is: the validated module with the feature `fips` | FIPS 140-3 |
//! | [`self_test`] | known answers of all of them, at start-up | |
//!
//! What it promises:
//! - Keys come in and go out as [`SecretBytes`](strongroom_memory::secret::SecretBytes) only.
//! - No wrong input panics, and no answer is given that was not authenticated where the cipher can
//!   (XTS cannot: it detects neither tampering nor rollback).
//! - Whatever compares secrets or tags takes the same time for any content.
//! - Every algorithm runs the published vectors of its standard in the tests, and
//!   [`self_test::self_test`] at start-up.
//!
//! What may not enter: ciphers of our own design, and of our own writing any but the XTS kernels of
//! `xts::vaes`, which are checked against the library's at each start; keys' origins and formats
//! (room `keys`), I/O, knowledge of volumes, algorithms that no other room asks for. `unsafe` is
//! confined to the kernels in `xts`; to thin bindings to aws-lc in `xts`, `gcm` and `block_tag`,
//! because aws-lc-rs has no XTS, takes nonces of one length, and keeps what it computes of a MAC
//! key on the heap; to the library's error queue in `module`; and to `guest`.

#![deny(unsafe_code)]

pub mod aead;
#[allow(unsafe_code)]
pub mod block_tag;
pub mod bulk;
mod error;
#[allow(unsafe_code)]
pub mod gcm;
#[allow(unsafe_code)]
pub mod guest;
pub mod kdf;
pub mod key_wrap;
pub mod mac;
pub mod module;
pub mod random;
pub mod self_test;
#[cfg(test)]
mod vectors;
#[allow(unsafe_code)]
pub mod xts;

pub use error::{Algorithm, CryptoError};
