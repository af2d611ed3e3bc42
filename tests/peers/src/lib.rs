//! Foreign KMIP servers and clients for tests: PyKMIP 0.11.0 and kmip-go 0.8.1, built by
//! `scripts/kmip-peers`. The program does not use this crate, and this crate does not know the
//! program. Beside them an identity provider, `oidc-provider`.
//!
//! - [`Pki`] makes certificates that all of them accept.
//! - [`Server`] is a running server; it can be killed, restarted at the same port over the same
//!   objects, and silenced.
//! - [`run_client`] drives a server with a foreign client.
//! - [`IdentityProvider`] is a running identity provider, with somebody who has a browser.
//! - [`CephCluster`] is a running Ceph cluster.
//! - [`Proxy`] stands between a client and a server and drops answers on request.
//!
//! Everything that a test starts ends with it, even if the test process is killed: servers exit
//! when their stdin closes.
#![forbid(unsafe_code)]

mod ceph;
mod identity;
mod pki;
mod proxy;
mod server;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub use ceph::{CephCluster, on_another_boot};
pub use identity::IdentityProvider;
pub use pki::{CertificateFiles, Pki};
pub use proxy::Proxy;
pub use server::{Server, ServerKind};

/// The directory with the peers' programs. The first call builds them: about twenty seconds if they
/// were never built on this machine, otherwise one.
///
/// # Panics
/// If they cannot be built, with the script's output.
pub fn programs() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/kmip-peers");
        let made = Command::new(&script).output().expect("scripts/kmip-peers does not start");
        assert!(
            made.status.success(),
            "scripts/kmip-peers failed: {}",
            String::from_utf8_lossy(&made.stderr)
        );
        PathBuf::from(String::from_utf8_lossy(&made.stdout).trim())
    })
}

/// The client that drives a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// PyKMIP's.
    PyKmip,
    /// kmip-go's.
    KmipGo,
}

/// Runs a foreign client with `arguments` (options, then scenarios) against a server. Returns its
/// output.
///
/// # Errors
/// The output, if one of the scenarios fails.
pub fn run_client(
    kind: ClientKind,
    address: &str,
    authority: &Path,
    identity: &CertificateFiles,
    arguments: &[&str],
) -> Result<String, String> {
    let program = match kind {
        ClientKind::PyKmip => "pykmip-client",
        ClientKind::KmipGo => "kmip-go-client",
    };
    let ran = Command::new(programs().join(program))
        .args(["--address", address])
        .arg("--ca")
        .arg(authority)
        .arg("--cert")
        .arg(&identity.certificate)
        .arg("--key")
        .arg(&identity.key)
        .args(arguments)
        .output()
        .map_err(|error| error.to_string())?;
    let said = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    if ran.status.success() { Ok(said) } else { Err(said) }
}
