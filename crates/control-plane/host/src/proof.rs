//! How a supervisor and a hostd that did not start it prove their identity to each other.
//!
//! Both know a secret that was made for this one process and is in a file of its run directory.
//! Neither sends it: each answers the other's random challenge with a tag over both challenges,
//! under its own label, so that an answer cannot be reflected.
//!
//! ```text
//! supervisor -> hostd   challenge S
//! hostd -> supervisor   challenge H, HMAC(secret, "hostd" S H vm)
//! supervisor -> hostd   HMAC(secret, "vm-supervisor" S H vm)
//! ```

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;
use serde::{Deserialize, Serialize};
pub use strongroom_peer_secret::PeerSecret;
use strongroom_peer_secret::{CHALLENGE_DIGITS, PeerSecretError, challenge};
use strongroom_types::VmId;
use thiserror::Error;

use crate::wire::{Wire, WireError};

/// Timeout of the whole exchange.
const PROVEN_WITHIN: Duration = Duration::from_secs(5);

const LABEL_HOSTD: &str = "strongroom hostd 1";
const LABEL_SUPERVISOR: &str = "strongroom vm-supervisor 1";

/// Why the peer is not trusted.
#[derive(Debug, Error)]
pub enum ProofError {
    /// It runs as another user.
    #[error("a process of user {0} is not heard")]
    User(u32),
    /// It does not know the secret.
    #[error("the other process is not who it should be: it does not know the secret of this VM's supervisor")]
    Wrong,
    /// Its message could not be exchanged.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The secret's file cannot be read or written.
    #[error("the secret of the VM's supervisor cannot be used: {0}")]
    File(#[from] io::Error),
    /// The secret cannot be held in memory, or the cipher library failed.
    #[error(transparent)]
    Secret(PeerSecretError),
}

impl From<PeerSecretError> for ProofError {
    fn from(error: PeerSecretError) -> Self {
        match error {
            PeerSecretError::Wrong => Self::Wrong,
            PeerSecretError::File(error) => Self::File(error),
            error @ (PeerSecretError::Memory(_) | PeerSecretError::Crypto(_)) => Self::Secret(error),
        }
    }
}

#[derive(Serialize, Deserialize)]
enum Step {
    Challenge(String),
    Proof { challenge: String, tag: String },
    Proven { tag: String },
}

/// hostd's side: proves that this is hostd, and verifies that the peer is the supervisor of this
/// VM.
///
/// # Errors
/// Also if the peer runs as another user.
pub fn prove_as_hostd(secret: &PeerSecret, wire: &Wire, vm: VmId) -> Result<(), ProofError> {
    let Step::Challenge(theirs) = wire.receive_within(PROVEN_WITHIN)?.0 else {
        return Err(ProofError::Wrong);
    };
    let ours = challenge()?;
    let tag = secret.tag(&message(LABEL_HOSTD, &theirs, &ours, vm))?;
    wire.send(&Step::Proof { challenge: ours.clone(), tag }, &[])?;
    match wire.receive_within(PROVEN_WITHIN)?.0 {
        Step::Proven { tag } => verify(secret, &tag, LABEL_SUPERVISOR, &theirs, &ours, vm),
        _ => Err(ProofError::Wrong),
    }
}

/// The supervisor's side of the exchange.
///
/// # Errors
/// If the proof fails; the peer then gets no answer.
pub fn prove_as_supervisor(secret: &PeerSecret, wire: &Wire, vm: VmId) -> Result<(), ProofError> {
    let ours = challenge()?;
    wire.send(&Step::Challenge(ours.clone()), &[])?;
    let Step::Proof { challenge: theirs, tag } = wire.receive_within(PROVEN_WITHIN)?.0 else {
        return Err(ProofError::Wrong);
    };
    verify(secret, &tag, LABEL_HOSTD, &ours, &theirs, vm)?;
    let tag = secret.tag(&message(LABEL_SUPERVISOR, &ours, &theirs, vm))?;
    Ok(wire.send(&Step::Proven { tag }, &[])?)
}

fn verify(
    secret: &PeerSecret,
    tag: &str,
    label: &str,
    one: &str,
    other: &str,
    vm: VmId,
) -> Result<(), ProofError> {
    // Challenges have a fixed length, so that no two messages have the same text.
    if [one, other].iter().any(|challenge| challenge.len() != CHALLENGE_DIGITS) {
        return Err(ProofError::Wrong);
    }
    Ok(secret.verify(&message(label, one, other, vm), tag)?)
}

fn message(label: &str, one: &str, other: &str, vm: VmId) -> String {
    format!("{label}\n{one}\n{other}\n{vm}")
}

/// Refuses a peer that is neither root nor the same user as this process.
///
/// # Errors
/// [`ProofError::User`], or if the kernel does not report the peer's user.
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

    fn exchange(hostd: &PeerSecret, supervisor: &PeerSecret, vm: [VmId; 2]) -> (bool, bool) {
        let (ours, theirs) = Wire::pair().unwrap();
        let theirs = Wire::adopt(theirs).unwrap();
        std::thread::scope(|scope| {
            let proving = scope.spawn(|| {
                let proven = prove_as_supervisor(supervisor, &theirs, vm[1]).is_ok();
                theirs.hang_up();
                proven
            });
            (prove_as_hostd(hostd, &ours, vm[0]).is_ok(), proving.join().unwrap())
        })
    }

    #[test]
    fn only_who_knows_the_secret_of_this_vm_is_believed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let (one, vm) = (PeerSecret::make(&path).unwrap(), VmId::random());
        let same = PeerSecret::read(&path).unwrap();
        assert_eq!(exchange(&same, &one, [vm, vm]), (true, true));
        assert_eq!(exchange(&same, &one, [vm, VmId::random()]), (false, false));
        let other = PeerSecret::make(&path).unwrap();
        assert_eq!(exchange(&other, &one, [vm, vm]), (false, false));
    }
}
