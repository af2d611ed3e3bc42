//! The transit engine of a HashiCorp Vault or OpenBao.
//!
//! The engine keeps one key, and KEKs under it: `datakey/plaintext` makes a KEK and gives it plain
//! and wrapped, `decrypt` opens a wrapped one. So a volume's descriptor carries its KEK wrapped,
//! and the engine's key takes the place of many.
//!
//! - `http`: requests and what answers mean.
//! - `login`: the token they bear.
//! - `provider`: keys.

mod http;
mod login;
mod provider;
#[cfg(test)]
mod tests;

pub use provider::VaultProvider;
