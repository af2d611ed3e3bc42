//! An identity provider that is not ours: `oidc-provider`, and somebody who signs in there.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use rcgen::{CertificateParams, KeyPair};

/// The directory with the provider's program. The first call installs it.
///
/// # Panics
/// If it cannot be installed, with the script's output.
fn programs() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/oidc-provider");
        let made = Command::new(&script).output().expect("scripts/oidc-provider does not start");
        let told = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "scripts/oidc-provider failed: {told}");
        PathBuf::from(String::from_utf8_lossy(&made.stdout).trim())
    })
}

/// A provider that runs. It ends on drop, or when the test's process does.
pub struct IdentityProvider {
    /// Its issuer.
    pub issuer: String,
    /// The file with the certificate of its server, which signs itself.
    pub certificate: PathBuf,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl IdentityProvider {
    /// The secret of its client `strongroom`; `strongroom-public` has none.
    pub const CLIENT_SECRET: &str = "a secret: with +signs";

    /// Starts a provider whose clients are sent back to the path `/callback/NAME`, with its files
    /// in a directory. `alice` is in the groups `ops` and `staff`, `bob` in `guests`. That called
    /// `fat` has all claims in its ID tokens, others at their UserInfo endpoints.
    ///
    /// # Panics
    /// If it does not serve.
    pub fn start(name: &str, directory: &Path) -> Self {
        let key = KeyPair::generate().expect("a key");
        let parameters = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("an address");
        let signed = parameters.self_signed(&key).expect("a certificate");
        let file = |ending: &str, content: String| {
            let path = directory.join(format!("{name}.{ending}"));
            std::fs::write(&path, content).expect("a directory of the test takes a file");
            path
        };
        let (certificate, key) = (file("crt", signed.pem()), file("key", key.serialize_pem()));
        let mut child = Command::new(programs().join("node"))
            .arg(programs().join("provider.mjs"))
            .args([Path::new(name), &certificate, &key])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("node starts");
        let stdin = child.stdin.take().expect("a pipe");
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        // It says other things first.
        let issuer = loop {
            let mut line = String::new();
            let read = stdout.read_line(&mut line).expect("it says something");
            assert!(read > 0, "the identity provider has ended");
            if let Some(issuer) = line.strip_prefix("{\"issuer\":\"").and_then(|rest| rest.split('"').next())
            {
                break issuer.to_owned();
            }
        };
        Self { issuer, certificate, child, stdin, stdout }
    }

    /// Puts somebody into these groups, and out of all others.
    pub fn set_groups(&mut self, user: &str, groups: &[&str]) {
        writeln!(self.stdin, "groups {user} {}", groups.join(",")).expect("it listens");
        let mut line = String::new();
        while !line.contains("\"ok\":true") {
            line.clear();
            let read = self.stdout.read_line(&mut line).expect("it answers");
            assert!(read > 0, "the identity provider has ended");
        }
    }

    /// The shell's words for somebody who opens `"$url"` and signs in as a user, or cancels as `-`.
    pub fn browser(&self, user: &str, more: &str) -> String {
        format!(
            "NODE_EXTRA_CA_CERTS={} {} {} \"$url\" {user} {more}",
            self.certificate.display(),
            programs().join("node").display(),
            programs().join("browser.mjs").display()
        )
    }
}

impl Drop for IdentityProvider {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
