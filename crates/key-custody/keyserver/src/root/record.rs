//! `root.json`: how the root is sealed. Nothing in it is secret.
//!
//! A digest over the rest distinguishes a damaged record from a wrong passphrase, credential or
//! PIN. It does not protect against deliberate edits; the seals do.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use super::credential::CredentialSeal;
use super::passphrase::PassphraseSeal;
use super::plain_file::PlainFileSeal;
use super::token::TokenSeal;
use super::tpm::TpmSeal;
use super::{Protection, RootId, hex};

/// The only format so far.
pub(super) const FORMAT: u32 = 1;

/// Longest record: the longest real one, for a TPM with two blobs, has 2 KiB.
pub(super) const RECORD_BYTES_MAX: usize = 64 << 10;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: u32,
    #[serde(with = "hex")]
    digest: Vec<u8>,
    root: Root,
}

/// The field that every format has, for detecting a newer one.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// The root's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Root {
    pub id: RootId,
    pub generation: u64,
    pub sealed_unix_seconds: u64,
    pub seal: Seal,
}

/// How the root is sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "way", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Seal {
    Tpm(TpmSeal),
    Token(TokenSeal),
    Credential(CredentialSeal),
    Passphrase(PassphraseSeal),
    PlainFile(PlainFileSeal),
}

impl Seal {
    pub fn protection(&self) -> Protection {
        match self {
            Self::Tpm(_) => Protection::Tpm,
            Self::Token(_) => Protection::Token,
            Self::Credential(_) => Protection::Credential,
            Self::Passphrase(_) => Protection::Passphrase,
            Self::PlainFile(_) => Protection::Unprotected,
        }
    }
}

impl fmt::Display for Seal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tpm(seal) => seal.fmt(formatter),
            Self::Token(seal) => seal.fmt(formatter),
            Self::Credential(seal) => seal.fmt(formatter),
            Self::Passphrase(seal) => seal.fmt(formatter),
            Self::PlainFile(seal) => seal.fmt(formatter),
        }
    }
}

/// Why bytes are not a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    Newer(u32),
    Damaged(String),
}

impl Root {
    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        let file = File { format: FORMAT, digest: self.digest()?, root: self.clone() };
        let mut text = serde_json::to_vec_pretty(&file)?;
        text.push(b'\n');
        Ok(text)
    }

    pub fn decode(text: &[u8]) -> Result<Self, Unreadable> {
        let damaged = |error: serde_json::Error| Unreadable::Damaged(error.to_string());
        let Format { format } = serde_json::from_slice(text).map_err(damaged)?;
        if format != FORMAT {
            return Err(Unreadable::Newer(format));
        }
        let file: File = serde_json::from_slice(text).map_err(damaged)?;
        if file.root.digest().map_err(damaged)? != file.digest {
            return Err(Unreadable::Damaged("its digest does not match its content".to_owned()));
        }
        Ok(file.root)
    }

    fn digest(&self) -> Result<Vec<u8>, serde_json::Error> {
        Ok(digest(&SHA256, &serde_json::to_vec(self)?).as_ref().to_vec())
    }
}
