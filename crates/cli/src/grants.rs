//! Grants on the command line. A grant is a control plane's signed permission for a host to fetch
//! keys once. As text it is a block:
//!
//! ```text
//! -----BEGIN STRONGROOM GRANT-----
//! base64 of the grant's bytes (strongroom_keyserver::grant::encoding)
//! -----END STRONGROOM GRANT-----
//! ```
//!
//! It is not a key, and only the host that it names can use it. A file may contain several, one
//! after the other.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clap::Args;
use parking_lot::Mutex;
use strongroom_files::FileError;
use strongroom_keys::ProviderKeyId;
use strongroom_keyserver::grant::{Grant, GrantId};
use strongroom_providers::{GrantSource, GrantWallet, KeyGrant};

use crate::error::CliError;

/// The label in the lines around a grant.
const LABEL: &str = "STRONGROOM GRANT";

/// The longest file of grants, in bytes: sixty grants of the greatest length, and many more of the
/// usual length.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The grants to use.
#[derive(Debug, Default, Args)]
#[group(multiple = false)]
pub struct GrantArguments {
    /// Present the grants in FILE, made by `strongroom keyserver grant`, to the key server. A host
    /// gets its keys only under grants, each of which is valid for one fetch. FILE is read again
    /// whenever a grant is needed
    #[arg(long, value_name = "FILE")]
    grant: Option<PathBuf>,

    /// Present the grants from file descriptor N, which is read once
    #[arg(long, value_name = "N")]
    grant_fd: Option<u32>,

    /// The grants that were read.
    #[arg(skip)]
    source: OnceCell<Arc<GrantsOfFile>>,
}

impl GrantArguments {
    /// The file of grants, if they come from one.
    pub fn file(&self) -> Option<&Path> {
        self.grant.as_deref()
    }

    /// The source of grants, if any were given.
    ///
    /// # Errors
    /// If the grants cannot be read, or if there are none.
    pub fn source(&self) -> Result<Option<Arc<dyn GrantSource>>, CliError> {
        if let Some(source) = self.source.get() {
            return Ok(Some(Arc::clone(source) as _));
        }
        let source = match (&self.grant, self.grant_fd) {
            (None, None) => return Ok(None),
            (Some(path), _) => GrantsOfFile::new(path.clone(), true),
            (None, Some(number)) => GrantsOfFile::new(format!("/proc/self/fd/{number}").into(), false),
        };
        source.read()?;
        Ok(Some(Arc::clone(self.source.get_or_init(|| Arc::new(source))) as _))
    }
}

/// A grant as text.
pub fn to_text(grant: &[u8]) -> String {
    let block = pem::Pem::new(LABEL, grant);
    pem::encode_config(&block, pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF))
}

/// The grants in a file, each shown once.
struct GrantsOfFile {
    path: PathBuf,
    read_again: bool,
    wallet: GrantWallet,
    seen: Mutex<HashSet<GrantId>>,
}

impl std::fmt::Debug for GrantsOfFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GrantsOfFile({})", self.path.display())
    }
}

impl GrantsOfFile {
    fn new(path: PathBuf, read_again: bool) -> Self {
        Self { path, read_again, wallet: GrantWallet::new(), seen: Mutex::default() }
    }

    /// Adds the grants that were not seen before.
    fn read(&self) -> Result<(), CliError> {
        let failed =
            |error| CliError::File(FileError { action: "read grants from", path: self.path.clone(), error });
        let mut text = Vec::new();
        let file = File::open(&self.path).map_err(failed)?;
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(failed)?;
        let none = |why: &str| CliError::Usage(format!("{} {why}", self.path.display()));
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(none("is longer than files of grants are"));
        }
        let blocks = pem::parse_many(&text).map_err(|_| none("holds no grants"))?;
        let mut seen = self.seen.lock();
        let mut found = 0;
        for block in blocks.into_iter().filter(|block| block.tag() == LABEL) {
            let bytes = block.into_contents();
            let grant = Grant::claimed(&bytes)
                .ok_or_else(|| none("holds a grant that was cut short or is of another program's version"))?;
            found += 1;
            if seen.insert(grant.id()) {
                self.wallet.add(key_grant(bytes, &grant));
            }
        }
        if found == 0 { Err(none("holds no grants")) } else { Ok(()) }
    }
}

fn key_grant(bytes: Vec<u8>, grant: &Grant) -> KeyGrant {
    // An id that is not valid for any provider is never requested.
    let keys = grant.objects().iter().filter_map(|object| object.parse::<ProviderKeyId>().ok());
    let expires = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(grant.expires().0));
    KeyGrant::new(bytes, keys, expires.unwrap_or(SystemTime::UNIX_EPOCH))
}

impl GrantSource for GrantsOfFile {
    fn take(&self, key: &ProviderKeyId) -> Option<KeyGrant> {
        self.wallet.take(key).or_else(|| {
            if !self.read_again {
                return None;
            }
            if let Err(error) = self.read() {
                tracing::warn!(%error, "no more grants");
            }
            self.wallet.take(key)
        })
    }

    fn put_back(&self, grant: KeyGrant) {
        self.wallet.put_back(grant);
    }
}

#[cfg(test)]
mod tests {
    use strongroom_keyserver::access::{CertificateSha256, PublicKeySha256};
    use strongroom_keyserver::authority::PrivateKey;
    use strongroom_keyserver::grant::{
        GrantPeriod, GrantSigner, GrantTime, GrantedOperation, GrantedOperations, VmGeneration, VmId,
    };

    use super::*;

    fn grant(keys: &[&str]) -> Vec<u8> {
        let (_, pkcs8) = PrivateKey::generate().unwrap();
        let signer = GrantSigner::new(&pkcs8, CertificateSha256::of(b"control")).unwrap();
        let operations = GrantedOperations::of(GrantedOperation::Get, &[]);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let objects = keys.iter().map(|key| (*key).to_owned()).collect();
        let time = GrantPeriod { not_before: GrantTime(now), expires: GrantTime(now + 60) };
        let host = PublicKeySha256::of(b"host");
        Grant::new(VmId::random(), VmGeneration(1), host, operations, objects, time)
            .unwrap()
            .sign(&signer)
            .unwrap()
    }

    #[test]
    fn grants_of_a_file_are_shown_once_and_new_ones_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("grants");
        let (first, second) = (grant(&["a"]), grant(&["a", "b"]));
        std::fs::write(&path, format!("for vm1\n{}\n{}", to_text(&first), to_text(&second))).unwrap();
        let grants = GrantsOfFile::new(path.clone(), true);
        grants.read().unwrap();
        let take = |key: &str| grants.take(&key.parse().unwrap()).map(|grant| grant.bytes().to_vec());
        assert_eq!((take("b"), take("b"), take("a"), take("a")), (Some(second), None, Some(first), None));
        let third = grant(&["a"]);
        std::fs::write(&path, to_text(&third)).unwrap();
        assert_eq!((take("a"), take("a")), (Some(third), None));
    }

    #[test]
    fn what_holds_no_grants_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("grants");
        let told = |text: &str| {
            std::fs::write(&path, text).unwrap();
            GrantsOfFile::new(path.clone(), true).read().unwrap_err().to_string()
        };
        let whole = to_text(&grant(&["a"]));
        let short = to_text(&grant(&["a"])[..100]);
        for text in ["", "grant", &whole.replace("GRANT", "KEY")] {
            assert!(told(text).ends_with("holds no grants"), "{text}");
        }
        assert!(told(&short).contains("cut short"));
        std::fs::remove_file(&path).unwrap();
        assert!(GrantsOfFile::new(path, true).read().unwrap_err().to_string().contains("read grants from"));
    }
}
