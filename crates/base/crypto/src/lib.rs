//! Strongroom's cryptography: all code that encrypts, decrypts, authenticates and derives keys, and
//! nothing else.
//!
//! | module | what | standard |
//! |---|---|---|
//! | [`xts`] | AES-256-XTS over whole data units, for the data path | IEEE 1619, NIST SP 800-38E |
//! | [`guest`] | the same on guest memory, which is in pieces and changes meanwhile | |
//! | [`aead`] | AES-256-GCM, for envelopes | NIST SP 800-38D |
//! | [`bulk`] | AES-256-GCM of long texts in place, for records of guest data | NIST SP 800-38D |
//! | [`records`] | AES-256-GCM of the records of a stream, in place and in order | NIST SP 800-38D |
//! | [`gcm`] | AES-GCM with given nonces, for data of the key server's clients | NIST SP 800-38D |
//! | [`key_wrap`] | AES-256 KW and KWP | RFC 3394, RFC 5649, NIST SP 800-38F |
//! | [`kdf`] | HKDF-SHA256, Argon2id | RFC 5869, RFC 9106 |
//! | [`mac`] | HMAC-SHA256, SHA-256 | RFC 2104, FIPS 180-4 |
//! | [`block_tag`] | HMAC-SHA256, or AES-256 of POLYVAL, of every block of a disk | FIPS 198-1, NIST SP 800-107; RFC 8452 |
//! | [`random`] | new keys | NIST SP 800-90A to C |
//! | [`module`] | the implementation: the validated module with the feature `fips` | FIPS 140-3 |
//! | [`self_test`] | known-answer tests of all of them, at start-up | |
//!
//! Promises:
//! - Keys are passed in and out only as [`SecretBytes`](strongroom_memory::secret::SecretBytes).
//! - No invalid input panics, and no unauthenticated plaintext is returned if the cipher can
//!   authenticate (XTS cannot: it detects neither tampering nor rollback).
//! - Comparisons of secrets and tags take a time that does not depend on the content.
//! - Every algorithm runs the published vectors of its standard in the tests, and
//!   [`self_test::self_test`] at start-up.
//!
//! Out of scope: ciphers of our own design; our own implementations, except the XTS kernels of
//! `xts::vaes`, which are compared with the library's at each start, and the kernels of POLYVAL,
//! which the library has only within AES-GCM-SIV; the origins and formats of keys (crate `keys`);
//! I/O; volumes; and algorithms that no other crate needs. `unsafe` is confined to the kernels in
//! `xts` and `block_tag`; to thin bindings to aws-lc in `xts`, `gcm` and `block_tag`, because
//! aws-lc-rs has no XTS, accepts nonces of one length, and keeps the state precomputed from a MAC
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
pub mod records;
pub mod self_test;
#[cfg(test)]
mod vectors;
#[allow(unsafe_code)]
pub mod xts;

pub use error::{Algorithm, CryptoError};
