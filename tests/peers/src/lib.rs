//! KMIP servers and clients of others, for tests that talk to them: PyKMIP 0.11.0 and kmip-go
//! 0.8.1, made by `scripts/kmip-peers`. Nothing of the program uses this; nothing here knows the
//! program.
//!
//! - [`Pki`] makes certificates that all of them accept.
//! - [`Server`] is a running server; it can be killed, started again at the same port over the same
//!   objects, and silenced.
//! - [`run_client`] drives a server with another's client.
//! - [`Proxy`] stands between two of them and loses what it is told to.
//!
//! Whatever a test starts ends with it, also if the test process is killed: servers end when their
//! stdin closes.
#![forbid(unsafe_code)]

mod pki;
mod proxy;
mod server;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub use pki::{CertificateFiles, Pki};
pub use proxy::Proxy;
pub use server::{Server, ServerKind};

/// The directory with the peers' programs. The first call makes them: some twenty seconds if they
/// were never made on this machine, one otherwise.
///
/// # Panics
/// If they cannot be made, with what the script says.
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

/// Whose client drives a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// PyKMIP's.
    PyKmip,
    /// kmip-go's.
    KmipGo,
}

/// Lets another's client do `arguments` (scenarios, and options before them) at a server, and gives
/// what it says.
///
/// # Errors
/// What it says, if one of the scenarios fails.
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
