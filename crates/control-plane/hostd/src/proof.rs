//! How hostd and the supervisor of a VM prove to each other who they are, when a hostd connects that did not start it.
//!
//! Both know a secret that was made for this one process and is in a file of its run directory. Neither sends it: each
//! answers the other's random challenge with a tag over both challenges, under its own label, so that no answer can be
//! given back as the other's.
//!
//! ```text
//! supervisor -> hostd   challenge S
//! hostd -> supervisor   challenge H, HMAC(secret, "hostd" S H vm)
//! supervisor -> hostd   HMAC(secret, "vm-supervisor" S H vm)
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt;
use serde::{Deserialize, Serialize};
use strongroom_crypto::CryptoError;
use strongroom_crypto::mac::{hmac_sha256, verify_hmac_sha256};
use strongroom_memory::secret::{SecretBytes, SecretError};
use strongroom_types::{VmId, hex};
use thiserror::Error;

use crate::wire::{Wire, WireError};

/// The bytes of the secret, and of a challenge.
const SECRET_BYTES: usize = 32;
/// For the whole exchange.
const PROVEN_WITHIN: Duration = Duration::from_secs(5);

const LABEL_HOSTD: &str = "strongroom hostd 1";
const LABEL_SUPERVISOR: &str = "strongroom vm-supervisor 1";

/// Why the other side is not believed.
#[derive(Debug, Error)]
pub enum ProofError {
    /// Another user.
    #[error("a process of user {0} is not heard")]
    User(u32),
    /// It does not know the secret.
    #[error("the other process is not who it should be: it does not know the secret of this VM's supervisor")]
    Wrong,
    /// Its words.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The secret's file.
    #[error("the secret of the VM's supervisor cannot be used: {0}")]
    File(#[from] io::Error),
    /// No memory for it.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The cipher library.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

#[derive(Serialize, Deserialize)]
enum Step {
    Challenge(String),
    Proof { challenge: String, tag: String },
    Proven { tag: String },
}

/// The secret of one supervisor.
#[derive(Debug)]
pub struct Secret(SecretBytes);

impl Secret {
    /// Makes one, and leaves it in a file that only its owner can read. What was there is replaced.
    ///
    /// # Errors
    /// If there is no memory, or the file cannot be written.
    pub fn make(path: &Path) -> Result<Self, ProofError> {
        let secret = SecretBytes::random(SECRET_BYTES)?;
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(secret.expose())?;
        Ok(Self(secret))
    }

    /// The one that was left there.
    ///
    /// # Errors
    /// If it is not there, is another user's, or others can read it.
    pub fn read(path: &Path) -> Result<Self, ProofError> {
        let mut file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.mode() & 0o077 != 0 || metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("others can read it").into());
        }
        let mut secret = SecretBytes::zeroed(SECRET_BYTES)?;
        file.read_exact(secret.expose_mut())?;
        Ok(Self(secret))
    }

    /// hostd's side: proves who we are, and that the other one is the supervisor of this VM.
    ///
    /// # Errors
    /// Also if the other one is of another user.
    pub fn prove_as_hostd(&self, wire: &Wire, vm: VmId) -> Result<(), ProofError> {
        let Step::Challenge(theirs) = wire.receive_within(PROVEN_WITHIN)?.0 else {
            return Err(ProofError::Wrong);
        };
        let ours = challenge()?;
        let tag = self.tag(LABEL_HOSTD, &theirs, &ours, vm)?;
        wire.send(&Step::Proof { challenge: ours.clone(), tag }, &[])?;
        match wire.receive_within(PROVEN_WITHIN)?.0 {
            Step::Proven { tag } => self.verify(LABEL_SUPERVISOR, &theirs, &ours, vm, &tag),
            _ => Err(ProofError::Wrong),
        }
    }

    /// The supervisor's side.
    ///
    /// # Errors
    /// The other one gets no answer then.
    pub fn prove_as_supervisor(&self, wire: &Wire, vm: VmId) -> Result<(), ProofError> {
        let ours = challenge()?;
        wire.send(&Step::Challenge(ours.clone()), &[])?;
        let Step::Proof { challenge: theirs, tag } = wire.receive_within(PROVEN_WITHIN)?.0 else {
            return Err(ProofError::Wrong);
        };
        self.verify(LABEL_HOSTD, &ours, &theirs, vm, &tag)?;
        let tag = self.tag(LABEL_SUPERVISOR, &ours, &theirs, vm)?;
        Ok(wire.send(&Step::Proven { tag }, &[])?)
    }

    fn tag(&self, label: &str, one: &str, other: &str, vm: VmId) -> Result<String, ProofError> {
        Ok(hex::encode(&hmac_sha256(&self.0, message(label, one, other, vm).as_bytes())?))
    }

    fn verify(&self, label: &str, one: &str, other: &str, vm: VmId, tag: &str) -> Result<(), ProofError> {
        let tag = hex::decode(tag).ok_or(ProofError::Wrong)?;
        // Challenges are of one length, so that no two messages are written alike.
        if [one, other].iter().any(|challenge| challenge.len() != 2 * SECRET_BYTES) {
            return Err(ProofError::Wrong);
        }
        verify_hmac_sha256(&self.0, message(label, one, other, vm).as_bytes(), &tag)
            .map_err(|_| ProofError::Wrong)
    }
}

fn message(label: &str, one: &str, other: &str, vm: VmId) -> String {
    format!("{label}\n{one}\n{other}\n{vm}")
}

fn challenge() -> Result<String, ProofError> {
    Ok(hex::encode(SecretBytes::random(SECRET_BYTES)?.expose()))
}

/// Refuses who is neither root nor our own user.
///
/// # Errors
/// [`ProofError::User`], or if the kernel does not say who it is.
pub fn check_peer(socket: &impl AsFd) -> Result<(), ProofError> {
    let peer = sockopt::socket_peercred(socket).map_err(WireError::from)?.uid;
    if peer.is_root() || peer == rustix::process::geteuid() {
        Ok(())
    } else {
        Err(ProofError::User(peer.as_raw()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(hostd: &Secret, supervisor: &Secret, vm: [VmId; 2]) -> (bool, bool) {
        let (ours, theirs) = Wire::pair().unwrap();
        let theirs = Wire::adopt(theirs).unwrap();
        std::thread::scope(|scope| {
            let proving = scope.spawn(|| {
                let proven = supervisor.prove_as_supervisor(&theirs, vm[1]).is_ok();
                theirs.hang_up();
                proven
            });
            (hostd.prove_as_hostd(&ours, vm[0]).is_ok(), proving.join().unwrap())
        })
    }

    #[test]
    fn only_who_knows_the_secret_of_this_vm_is_believed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let (one, vm) = (Secret::make(&path).unwrap(), VmId::random());
        let same = Secret::read(&path).unwrap();
        assert_eq!(exchange(&same, &one, [vm, vm]), (true, true));
        assert_eq!(exchange(&same, &one, [vm, VmId::random()]), (false, false));
        let other = Secret::make(&path).unwrap();
        assert_eq!(exchange(&other, &one, [vm, vm]), (false, false));
    }

    #[test]
    fn a_secret_that_others_can_read_is_none() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        Secret::make(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(Secret::read(&path).is_err());
    }
}
