//! A machine joins the site of another one as a host: `serve --role host --join`.
//!
//! ```text
//! token -> checks, which change nothing -> key, certificate -> key provider -> joined.json -> hostd
//! ```
//!
//! A machine is joined once `<home>/hostd/joined.json` exists. A crash before that leaves a token
//! that may be used up: the host is removed, and joins with another token.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strongroom_api::host::HostToken;
use strongroom_files::FileError;
use strongroom_host::protocol::FORMATS;
use strongroom_hostd::daemon::PortOptions;
use strongroom_hostd::daemon::config::HostConfig;
use strongroom_hypervisor::qemu::QemuProgram;
use strongroom_jobs::state_file;
use strongroom_keyserver::access::{CertificateSha256, ClientId, Role};
use strongroom_keyserver::authority::enrol::Client;
use strongroom_keyserver::authority::enrol::token::EnrolmentToken;
use strongroom_keyserver::authority::peer::{ExpectedPeer, Revocations};
use strongroom_types::{unix_milliseconds_now, unix_seconds_now};
use strongroom_vm::Capabilities;
use strongroom_wire::Formats;
use time::OffsetDateTime;

use super::Places;
use super::identity::Identity;
use super::peers::SitePeer;
use super::revocations::RevocationWatch;
use crate::error::CliError;
use crate::keyserver::NewKey;
use crate::output::{Output, utc};

/// The file that says which site the machine has joined, in hostd's home.
const JOINED: &str = "joined.json";
/// What this machine knows to be revoked, in hostd's home.
const REVOKED: &str = "revoked.json";
/// The format of that file, and of a token.
const FORMAT: u32 = 1;
/// The longest file with a token, in bytes.
const TOKEN_BYTES_MAX: u64 = 64 << 10;
/// The most that this machine's clock may differ from the key server's. A grant is valid for five
/// minutes.
const CLOCK_SKEW_MAX: Duration = Duration::from_secs(30);
/// The interval of looks at the certificate. It is renewed 30 days before it expires.
const RENEWED_EVERY: Duration = Duration::from_secs(3600);
/// The interval after a renewal that failed: the key server may be back soon.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// The options of a join.
#[derive(Clone, Debug)]
pub struct Join {
    /// The key server's address for enrolment.
    pub server: SocketAddr,
    /// The file with the token.
    pub token: PathBuf,
    /// SHA-256 of the certificate of the key server's authority, as a person has read it there.
    pub fingerprint: Option<CertificateSha256>,
    /// The address of hostd's port; that of the token by default.
    pub listen: Option<SocketAddr>,
}

/// The site that this machine has joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Joined {
    format: u32,
    /// The host's name.
    pub name: String,
    /// The address of hostd's port.
    pub listen: SocketAddr,
    /// The control plane, the only one that may give orders.
    control: ClientId,
    /// The key server's address for enrolment and renewal.
    enrolment: SocketAddr,
}

impl Joined {
    /// The site that hostd's home has joined, if it has joined one.
    pub fn of_home(hostd: &Path) -> Result<Option<Self>, CliError> {
        let path = hostd.join(JOINED);
        match state_file::read(&path, FORMAT) {
            Ok(joined) => Ok(Some(joined)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(CliError::File(FileError { action: "read", path, error })),
        }
    }

    /// hostd's port, which admits the control plane.
    pub fn port(&self, hostd: &Path) -> Result<PortOptions, CliError> {
        let expected = ExpectedPeer { role: Role::Control, client: self.control };
        let files = Identity::host(&self.name, hostd)?.files();
        let peer = SitePeer::new(files, expected, self.revocations(hostd)?);
        Ok(PortOptions { listen: self.listen, tls: Arc::new(peer) })
    }

    /// What is known to be revoked, and asked for while the process runs.
    pub fn revocations(&self, hostd: &Path) -> Result<Arc<Revocations>, CliError> {
        let files = Identity::host(&self.name, hostd)?.files();
        let key_server = Client::new(&self.enrolment.to_string())?;
        RevocationWatch { files, key_server, file: hostd.join(REVOKED) }.start()
    }

    /// The control plane.
    pub fn control(&self) -> ClientId {
        self.control
    }

    /// Renews the host's certificate while the process runs.
    pub fn keep_renewed(&self, hostd: &Path) -> Result<(), CliError> {
        let identity = Identity::host(&self.name, hostd)?;
        let enrolment = self.enrolment.to_string();
        let name = self.name.clone();
        let renew = move || -> Result<bool, CliError> {
            let ends = identity.files().not_after()?;
            if ends < OffsetDateTime::now_utc() {
                return Err(CliError::HostCertificateEnded {
                    name: name.clone(),
                    ended: utc(u64::try_from(ends.unix_timestamp()).unwrap_or_default()),
                    enrolment: enrolment.clone(),
                    directory: identity.directory(),
                });
            }
            identity.renew_if_due(Client::new(&enrolment)?)
        };
        let keep = move || {
            loop {
                let pause = match renew() {
                    Ok(true) => {
                        tracing::info!("the host's certificate was renewed");
                        RENEWED_EVERY
                    }
                    Ok(false) => RENEWED_EVERY,
                    Err(error) => {
                        tracing::warn!("the host's certificate cannot be renewed: {error}");
                        AGAIN_AFTER
                    }
                };
                std::thread::sleep(pause);
            }
        };
        // It ends with the process.
        std::thread::Builder::new()
            .name("renewal".to_owned())
            .spawn(keep)
            .map(drop)
            .map_err(CliError::Runtime)
    }
}

impl Join {
    /// Joins. Nothing is changed if this machine does not fit. Says what the site demands of
    /// processors and this machine cannot give: other VMs can run here.
    pub fn run(&self, output: &Output, places: &Places) -> Result<Joined, CliError> {
        let token = self.token()?;
        self.check_home(places)?;
        check(&token, &This::machine())?;
        let enrolment_token =
            EnrolmentToken::read(&token.token).map_err(|error| CliError::Usage(error.to_string()))?;
        let authority = enrolment_token.authority();
        if let Some(expected) = self.fingerprint
            && expected != authority
        {
            return Err(CliError::Usage(format!(
                "the token is of the authority {authority}, and --fingerprint names {expected}; make sure that the token \
                 comes from the right machine"
            )));
        }
        let server = Client::new(&self.server.to_string())?;
        check_clock(server.clock(authority)?, unix_milliseconds_now())?;
        let (control, address) = parsed(&token)?;
        say_what_is_missing(output, &token, places)?;
        let identity = Identity::host(&token.name, &places.hostd)?;
        let key = NewKey::generate()?;
        let enrolled = server.enrol(&enrolment_token, &key.signing_request)?;
        identity.files().write(&key, &enrolled.certificate, &enrolled.authorities)?;
        identity.register_at(&token.kmip, token.server_name.clone())?;
        // The term is that of another site, or of before the host was removed.
        let term = places.hostd.join("term.json");
        strongroom_files::remove(&term)
            .map_err(|error| CliError::File(FileError { action: "remove", path: term, error }))?;
        let joined = Joined {
            format: FORMAT,
            name: token.name,
            listen: self.listen.unwrap_or(address),
            control,
            enrolment: self.server,
        };
        state_file::replace(&places.hostd.join(JOINED), &joined)?;
        Ok(joined)
    }

    fn token(&self) -> Result<HostToken, CliError> {
        let unreadable =
            |error| CliError::File(FileError { action: "read", path: self.token.clone(), error });
        let text = strongroom_files::read(&self.token, TOKEN_BYTES_MAX).map_err(unreadable)?;
        serde_json::from_slice(&text).map_err(|error| {
            CliError::Usage(format!(
                "{} holds no token of `strongroom host token` ({error}); copy it again, whole",
                self.token.display()
            ))
        })
    }

    /// Refuses a machine with a site of its own, or that has joined one.
    fn check_home(&self, places: &Places) -> Result<(), CliError> {
        if places.home.join("keyserver").exists() {
            return Err(CliError::Usage(format!(
                "{} has a key server of its own; join with another home, or remove that site first",
                places.home.display()
            )));
        }
        match Joined::of_home(&places.hostd)? {
            None => Ok(()),
            Some(joined) => Err(CliError::Usage(format!(
                "this machine has joined a site as host {}; start it without --join, or, after `strongroom host remove {}` \
                 there, remove {} and join again",
                joined.name,
                joined.name,
                places.hostd.join(JOINED).display()
            ))),
        }
    }
}

/// What is known of this machine.
struct This {
    formats: Formats,
    architecture: &'static str,
    has_aes: bool,
    now_unix_seconds: u64,
}

impl This {
    fn machine() -> Self {
        Self {
            formats: FORMATS,
            architecture: std::env::consts::ARCH,
            has_aes: has_aes(),
            now_unix_seconds: unix_seconds_now(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_aes() -> bool {
    std::arch::is_x86_feature_detected!("aes")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_aes() -> bool {
    true
}

/// Checks whether this machine fits the site.
fn check(token: &HostToken, this: &This) -> Result<(), CliError> {
    let refused = |reason: String| Err(CliError::Usage(reason));
    if token.format != FORMAT {
        return refused(format!(
            "the token has format {}, and this program reads {FORMAT}; install the version of the control plane, {}",
            token.format, token.version
        ));
    }
    let [oldest, newest] = token.host_formats;
    if this.formats.common(Formats { oldest, newest }).is_none() {
        return refused(format!(
            "the control plane has version {} and speaks {} with hosts, and this program {}; install the same version here",
            token.version,
            Formats { oldest, newest },
            this.formats
        ));
    }
    if token.architecture != this.architecture {
        return refused(format!(
            "the site's machines have {} processors, and this one has {}; its guests could not move; join a site of its kind",
            token.architecture, this.architecture
        ));
    }
    if !this.has_aes {
        return refused(
            "this machine's processor has no AES instructions, or its firmware disables them; enable them there, or take \
             another machine"
                .to_owned(),
        );
    }
    if token.expires_unix_seconds <= this.now_unix_seconds {
        return refused(format!(
            "the token has expired, or this machine's clock is wrong; see `date`, and make another token with `strongroom \
             host remove {0}` and `strongroom host token {0}`",
            token.name
        ));
    }
    Ok(())
}

/// Says what this machine's processor lacks of what the site demands.
fn say_what_is_missing(output: &Output, token: &HostToken, places: &Places) -> Result<(), CliError> {
    let config = HostConfig::of_home(&places.hostd).map_err(|error| {
        CliError::File(FileError { action: "read the configuration in", path: places.hostd.clone(), error })
    })?;
    let asked = QemuProgram::probe(&config.qemu).map_err(|error| error.to_string());
    let asked = asked.and_then(|qemu| qemu.capabilities().cloned().map_err(str::to_owned));
    for line in missing(token, &asked) {
        output.remark(&line);
    }
    Ok(())
}

/// What is to be said of a machine whose QEMU has said this.
fn missing(token: &HostToken, asked: &Result<Capabilities, String>) -> Vec<String> {
    match asked {
        Ok(has) => {
            let lacks = token.processors.lacking(has).into_iter();
            lacks.map(|lack| format!("this machine as host {}: {}", token.name, lack.message)).collect()
        }
        Err(why) => vec![format!("which processors this machine can give to VMs is not known: {why}")],
    }
}

/// Checks this machine's clock against the key server's, both in milliseconds since 1970.
fn check_clock(server: u64, ours: u64) -> Result<(), CliError> {
    let skew = Duration::from_millis(server.abs_diff(ours));
    if skew <= CLOCK_SKEW_MAX {
        return Ok(());
    }
    let direction = if ours > server { "ahead of" } else { "behind" };
    Err(CliError::Usage(format!(
        "this machine's clock is {} s {direction} the key server's, and grants would not be valid here; synchronise both \
         (chrony, systemd-timesyncd), and try again",
        skew.as_secs()
    )))
}

fn parsed(token: &HostToken) -> Result<(ClientId, SocketAddr), CliError> {
    let wrong =
        |what: &str| CliError::Usage(format!("the token's {what} cannot be read; copy it again, whole"));
    let control = token.control.parse().map_err(|_| wrong("control plane"))?;
    let address = token.address.parse().map_err(|_| wrong("address"))?;
    Ok((control, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> HostToken {
        serde_json::from_value(serde_json::json!({
            "format": 1, "host": "00000000-0000-4000-8000-000000000001", "name": "host2",
            "address": "10.0.0.6:5691", "token": "", "made_unix_seconds": 1000, "expires_unix_seconds": 4600,
            "enrolment": "10.0.0.5:5697", "kmip": "10.0.0.5:5696", "authority": "", "control": "",
            "version": "9.1.0", "host_formats": [2, 3], "architecture": "x86_64", "later": true,
        }))
        .unwrap()
    }

    fn this() -> This {
        let formats = Formats { oldest: 1, newest: 2 };
        This { formats, architecture: "x86_64", has_aes: true, now_unix_seconds: 2000 }
    }

    #[test]
    fn a_machine_that_does_not_fit_is_refused_with_the_next_step() {
        check(&token(), &this()).unwrap();
        for (token, this, says) in [
            (HostToken { format: 2, ..token() }, this(), "install the version of the control plane, 9.1.0"),
            (HostToken { host_formats: [3, 4], ..token() }, this(), "install the same version here"),
            (token(), This { architecture: "aarch64", ..this() }, "join a site of its kind"),
            (token(), This { has_aes: false, ..this() }, "enable them there"),
            (token(), This { now_unix_seconds: 4600, ..this() }, "strongroom host token host2"),
        ] {
            let refused = check(&token, &this).unwrap_err().to_string();
            assert!(refused.contains(says), "{refused}");
        }
    }

    #[test]
    fn what_the_site_demands_and_the_machine_lacks_is_named() {
        let processors = serde_json::json!({ "features": ["avx2", "sse4.2"], "vendors": ["GenuineIntel"],
            "demanded": [{ "processor": "x86-64-v3", "vms": ["web1"], "vms_total": 1, "policies": ["gold"] }] });
        let token = HostToken { processors: serde_json::from_value(processors).unwrap(), ..token() };
        let has = |processors: &[&str], features: &[&str], vendor: &str| -> Result<Capabilities, String> {
            Ok(serde_json::from_value(serde_json::json!({ "machine_types": [], "default_machine_types": [],
                "processors": processors, "features": features, "vendor": vendor }))
            .unwrap())
        };
        assert_eq!(missing(&token, &has(&["x86-64-v3"], &["avx2", "sse4.2"], "GenuineIntel")), [""; 0]);
        let told = missing(&token, &has(&["x86-64-v2"], &["sse4.2"], "AuthenticAMD"));
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told[0].contains("host host2: it cannot give the whole processor x86-64-v3, which VM web1 has and policy gold demands"));
        assert!(told[1].contains("avx2") && told[2].contains("AuthenticAMD"), "{told:?}");
        let unknown = missing(&token, &Err("there is no QEMU".to_owned()));
        assert!(unknown[0].contains("there is no QEMU"), "{unknown:?}");
        // A token of an earlier version says nothing.
        assert_eq!(missing(&super::tests::token(), &has(&[], &[], "AuthenticAMD")), [""; 0]);
    }

    #[test]
    fn a_clock_that_is_off_is_refused() {
        let at = |seconds: u64| seconds * 1000;
        check_clock(at(1000), at(1030)).unwrap();
        check_clock(at(1030), at(1000)).unwrap();
        let ahead = check_clock(at(1000), at(1032)).unwrap_err().to_string();
        assert!(ahead.contains("32 s ahead of") && ahead.contains("synchronise"), "{ahead}");
        let behind = check_clock(at(1040), at(1000)).unwrap_err().to_string();
        assert!(behind.contains("40 s behind"), "{behind}");
    }
}
