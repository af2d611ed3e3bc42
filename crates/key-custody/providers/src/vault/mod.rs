//! The transit engine of a HashiCorp Vault or OpenBao.
//!
//! The engine keeps one key and wraps KEKs under it: `datakey/plaintext` creates a KEK and returns
//! it plain and wrapped, `decrypt` unwraps one. So a volume's descriptor carries its wrapped KEK,
//! and the engine needs only one key.
//!
//! - `http`: requests and answers.
//! - `login`: the token of requests.
//! - `provider`: keys.

mod http;
mod login;
mod provider;
#[cfg(test)]
mod tests;

pub use provider::VaultProvider;
