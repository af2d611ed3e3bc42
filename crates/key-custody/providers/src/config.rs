//! A provider's configuration: one JSON file of the registry. It holds paths and names, never a
//! secret.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strongroom_keys::OnRevocation;
use strongroom_kmip::client::{ServerAddress, TlsFiles};

use crate::CALL_LIMIT;
use crate::error::ProviderError;
use crate::holder::RENEW_PERIOD;

/// The format that this program writes and reads.
pub const CONFIG_FORMAT: u32 = 1;

/// The most servers of a cluster: with more, trying them in turn would take over two seconds.
pub const SERVERS_MAX: usize = 8;

/// The bounds of a lease, in seconds: a shorter one could end while a provider takes its
/// [time](CALL_LIMIT) to answer, and a longer one would be no lease.
pub const LEASE_SECONDS: (u64, u64) = (CALL_LIMIT.as_secs(), 7 * 86_400);

/// The bounds of the time between two renewals, in seconds. At one second, each exposed volume
/// causes a request each second; a holder that renews less than hourly learns of a revocation too
/// late to act on it.
pub const RENEW_SECONDS: (u64, u64) = (1, 3600);

/// The longest time that an outage may be ridden out after a lease, in seconds.
pub const OUTAGE_ALLOWANCE_SECONDS_MAX: u64 = 30 * 86_400;

/// The longest cryptoperiod, in days: ten years. NIST SP 800-57 part 1 has two years for a
/// key-wrapping key.
pub const CRYPTOPERIOD_DAYS_MAX: u32 = 3653;

/// The bounds of a server's time for one request, in milliseconds: HSMs take some, and callers
/// wait.
pub const REQUEST_TIMEOUT_MS: (u64, u64) = (100, 8_000);

/// The timeout of a request, in milliseconds, unless it is set. A key server that is the broker of
/// another provider answers within 4 s, also if that is silent.
pub const DEFAULT_REQUEST_TIMEOUT_MS: u64 = 5_000;

/// The configuration of one provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderConfig {
    /// [`CONFIG_FORMAT`].
    pub format: u32,
    /// Where the keys are.
    pub source: SourceConfig,
    /// For how long a holder may keep a key.
    #[serde(default)]
    pub lease: LeaseConfig,
    /// The policy for a volume in use when its key is revoked as compromised, or destroyed.
    #[serde(default)]
    pub on_revocation: OnRevocation,
    /// After how many days a key should be replaced; `None` leaves that to the provider.
    #[serde(default)]
    pub cryptoperiod_days: Option<u32>,
}

/// Where the keys are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum SourceConfig {
    /// A cluster of KMIP servers.
    Kmip(KmipConfig),
    /// The embedded key server: KMIP with the certificate from enrolment.
    Embedded(KmipConfig),
    /// The transit engine of a HashiCorp Vault or OpenBao.
    Vault(VaultConfig),
}

/// A cluster of KMIP servers that have the same keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KmipConfig {
    /// The servers as HOST:PORT, the preferred one first.
    pub servers: Vec<String>,
    /// Certificates of the authorities of the servers' certificates, PEM.
    pub ca: PathBuf,
    /// Our certificate, PEM.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// The name in the servers' certificates, if it is not the host's.
    #[serde(default)]
    pub server_name: Option<String>,
    /// Time for one request to one server.
    #[serde(default = "KmipConfig::default_request_timeout_ms")]
    pub request_timeout_ms: u64,
    /// Whether keys get a Name and a group, by which they can be found again. Off for servers that
    /// refuse them.
    #[serde(default = "yes")]
    pub named_keys: bool,
}

/// A transit engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VaultConfig {
    /// The server, `https://HOST:PORT`.
    pub url: String,
    /// Certificates of the authorities of its certificate, PEM.
    pub ca: PathBuf,
    /// Where the engine is mounted.
    #[serde(default = "VaultConfig::default_mount")]
    pub mount: String,
    /// The engine's key that KEKs are wrapped under.
    pub key: String,
    /// The namespace, if the server has namespaces.
    #[serde(default)]
    pub namespace: Option<String>,
    /// How to log in.
    pub login: VaultLogin,
    /// Time for one request.
    #[serde(default = "KmipConfig::default_request_timeout_ms")]
    pub request_timeout_ms: u64,
}

/// How to log in to a Vault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "method", rename_all = "kebab-case", deny_unknown_fields)]
pub enum VaultLogin {
    /// A token that another program keeps valid in a file.
    Token {
        /// The file.
        file: PathBuf,
    },
    /// An AppRole.
    AppRole {
        /// Where the method is mounted.
        #[serde(default = "VaultLogin::default_mount")]
        mount: String,
        /// The role; not secret.
        role_id: String,
        /// A file with its secret id.
        secret_id_file: PathBuf,
    },
}

/// For how long a holder may keep a key in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseConfig {
    /// How long a key is good after its provider last confirmed it.
    pub lease_seconds: u64,
    /// How much longer it is good while the provider cannot be reached.
    pub outage_allowance_seconds: u64,
    /// The time between two confirmations.
    #[serde(default = "LeaseConfig::default_renew_seconds")]
    pub renew_seconds: u64,
}

impl LeaseConfig {
    fn default_renew_seconds() -> u64 {
        RENEW_PERIOD.as_secs()
    }

    /// The longest time until a holder learns of a revocation, if the provider can be reached: one
    /// renewal period and one call to a provider whose preferred servers are silent.
    pub fn revocation_notice_max(&self) -> Duration {
        Duration::from_secs(self.renew_seconds) + CALL_LIMIT
    }

    fn check(&self) -> Result<(), ProviderError> {
        let Self { lease_seconds, outage_allowance_seconds, renew_seconds } = *self;
        if !(LEASE_SECONDS.0..=LEASE_SECONDS.1).contains(&lease_seconds) {
            let (least, most) = LEASE_SECONDS;
            return Err(misconfigured(format!("a lease has {least} to {most} seconds, not {lease_seconds}")));
        }
        if !(RENEW_SECONDS.0..=RENEW_SECONDS.1).contains(&renew_seconds) {
            let (least, most) = RENEW_SECONDS;
            return Err(misconfigured(format!(
                "a lease is renewed every {least} to {most} seconds, not every {renew_seconds}"
            )));
        }
        // The lease survives one failed renewal.
        if renew_seconds.saturating_mul(2) > lease_seconds {
            return Err(misconfigured(format!(
                "a lease that is renewed every {renew_seconds} seconds has at least twice as many, not {lease_seconds}"
            )));
        }
        if outage_allowance_seconds > OUTAGE_ALLOWANCE_SECONDS_MAX {
            return Err(misconfigured(format!(
                "an outage is ridden out for {OUTAGE_ALLOWANCE_SECONDS_MAX} seconds at most, not {outage_allowance_seconds}"
            )));
        }
        Ok(())
    }
}

impl Default for LeaseConfig {
    /// An hour, and a day of outage: a weekday's repair.
    fn default() -> Self {
        let renew_seconds = Self::default_renew_seconds();
        Self { lease_seconds: 3600, outage_allowance_seconds: 86_400, renew_seconds }
    }
}

impl KmipConfig {
    /// Where the cluster's TLS files are.
    pub fn tls_files(&self) -> TlsFiles {
        TlsFiles { authority: self.ca.clone(), certificate: self.certificate.clone(), key: self.key.clone() }
    }

    /// The servers' addresses.
    pub fn addresses(&self) -> Result<Vec<ServerAddress>, ProviderError> {
        self.servers.iter().map(|server| server.parse().map_err(misconfigured)).collect()
    }

    fn default_request_timeout_ms() -> u64 {
        DEFAULT_REQUEST_TIMEOUT_MS
    }

    fn check(&self) -> Result<(), ProviderError> {
        let addresses = self.addresses()?;
        if addresses.is_empty() || addresses.len() > SERVERS_MAX {
            return Err(misconfigured(format!(
                "a cluster has 1 to {SERVERS_MAX} servers, not {}",
                addresses.len()
            )));
        }
        for (index, address) in addresses.iter().enumerate() {
            if addresses[..index].contains(address) {
                return Err(misconfigured(format!("{address} is given twice")));
            }
        }
        check_timeout(self.request_timeout_ms)?;
        [&self.ca, &self.certificate, &self.key].into_iter().try_for_each(|path| check_absolute(path))
    }
}

impl VaultConfig {
    fn default_mount() -> String {
        "transit".to_owned()
    }

    fn check(&self) -> Result<(), ProviderError> {
        if !self.url.starts_with("https://") || self.url.contains(['?', '#', '@', ' ']) {
            return Err(misconfigured(format!("'{}' is no https:// address of a Vault", self.url)));
        }
        check_path_part("the mount", &self.mount, true)?;
        check_path_part("the transit key", &self.key, false)?;
        if let VaultLogin::AppRole { mount, .. } = &self.login {
            check_path_part("the mount of AppRole", mount, true)?;
        }
        if let Some(namespace) = &self.namespace {
            check_path_part("the namespace", namespace, true)?;
        }
        check_timeout(self.request_timeout_ms)?;
        check_absolute(&self.ca)?;
        match &self.login {
            VaultLogin::Token { file } | VaultLogin::AppRole { secret_id_file: file, .. } => {
                check_absolute(file)
            }
        }
    }
}

impl VaultLogin {
    /// The default mount of AppRole.
    pub fn default_mount() -> String {
        "approle".to_owned()
    }
}

impl ProviderConfig {
    /// A configuration with the defaults of everything but the source.
    pub fn new(source: SourceConfig) -> Self {
        Self {
            format: CONFIG_FORMAT,
            source,
            lease: LeaseConfig::default(),
            on_revocation: OnRevocation::default(),
            cryptoperiod_days: None,
        }
    }

    /// The files that it names.
    pub fn files(&self) -> Vec<&Path> {
        match &self.source {
            SourceConfig::Kmip(kmip) | SourceConfig::Embedded(kmip) => {
                vec![&kmip.ca, &kmip.certificate, &kmip.key]
            }
            SourceConfig::Vault(vault) => match &vault.login {
                VaultLogin::Token { file } => vec![&vault.ca, file],
                VaultLogin::AppRole { secret_id_file, .. } => vec![&vault.ca, secret_id_file],
            },
        }
    }

    /// Checks that everything is within its limits. Opens no file and contacts no server.
    ///
    /// # Errors
    /// [`ProviderError::Misconfigured`], which names the offending value.
    pub fn check(&self) -> Result<(), ProviderError> {
        if self.format != CONFIG_FORMAT {
            return Err(misconfigured(format!(
                "it has format {}, and this program reads format {CONFIG_FORMAT}; upgrade the program",
                self.format
            )));
        }
        self.lease.check()?;
        if self.cryptoperiod_days.is_some_and(|days| !(1..=CRYPTOPERIOD_DAYS_MAX).contains(&days)) {
            return Err(misconfigured(format!("a cryptoperiod has 1 to {CRYPTOPERIOD_DAYS_MAX} days")));
        }
        match &self.source {
            SourceConfig::Kmip(config) | SourceConfig::Embedded(config) => config.check(),
            SourceConfig::Vault(config) => config.check(),
        }
    }

    /// How long a key should be in use.
    pub fn cryptoperiod(&self) -> Option<Duration> {
        self.cryptoperiod_days.map(|days| Duration::from_secs(u64::from(days) * 86_400))
    }
}

impl SourceConfig {
    /// Its name in messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Kmip(_) => "kmip",
            Self::Embedded(_) => "embedded",
            Self::Vault(_) => "vault",
        }
    }

    /// Its servers.
    pub fn servers(&self) -> Vec<String> {
        match self {
            Self::Kmip(config) | Self::Embedded(config) => config.servers.clone(),
            Self::Vault(config) => vec![config.url.clone()],
        }
    }
}

fn yes() -> bool {
    true
}

pub(crate) fn misconfigured(reason: impl ToString) -> ProviderError {
    ProviderError::Misconfigured { reason: reason.to_string() }
}

fn check_timeout(milliseconds: u64) -> Result<(), ProviderError> {
    let (least, most) = REQUEST_TIMEOUT_MS;
    if (least..=most).contains(&milliseconds) {
        return Ok(());
    }
    Err(misconfigured(format!("a request has {least} to {most} milliseconds, not {milliseconds}")))
}

/// A relative path would mean another file to every program that reads the configuration.
fn check_absolute(path: &Path) -> Result<(), ProviderError> {
    if path.is_absolute() {
        return Ok(());
    }
    Err(misconfigured(format!("{} is no absolute path", path.display())))
}

/// Refuses text that could leave its place in the path of a URL.
fn check_path_part(what: &str, text: &str, nested: bool) -> Result<(), ProviderError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) || (nested && byte == b'/');
    let steps = text.split('/').all(|step| !step.is_empty() && step != "." && step != "..");
    if text.len() <= 256 && text.bytes().all(plain) && steps {
        return Ok(());
    }
    Err(misconfigured(format!("'{text}' cannot be {what}: write letters, digits, - _ and .")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KMIP: &str = r#"{"format":1,"source":{"kind":"kmip","servers":["kms1:5696","kms2"],
        "ca":"/t/ca.pem","certificate":"/t/c.pem","key":"/t/k.pem"}}"#;
    const VAULT: &str = r#"{"format":1,"source":{"kind":"vault","url":"https://vault:8200","ca":"/t/ca.pem","key":"strongroom",
        "login":{"method":"app-role","role_id":"r","secret_id_file":"/t/s"}},"cryptoperiod_days":365}"#;

    fn read(text: &str) -> Result<ProviderConfig, String> {
        let config: ProviderConfig = serde_json::from_str(text).map_err(|error| error.to_string())?;
        config.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn what_is_not_said_has_a_default() {
        let config = read(KMIP).unwrap();
        assert_eq!(config.lease, LeaseConfig::default());
        assert_eq!(config.source.servers(), ["kms1:5696", "kms2"]);
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(read(&text).unwrap(), config);
        // The lease of a file that an earlier version wrote.
        let lease = r#""format":1,"lease":{"lease_seconds":60,"outage_allowance_seconds":0}"#;
        let earlier = read(&KMIP.replacen(r#""format":1"#, lease, 1)).unwrap();
        assert_eq!((earlier.lease.renew_seconds, earlier.on_revocation), (30, OnRevocation::KeepServing));
        assert_eq!(earlier.lease.revocation_notice_max(), crate::REVOCATION_NOTICE_MAX);
        let vault = read(VAULT).unwrap();
        assert_eq!(vault.cryptoperiod(), Some(Duration::from_secs(365 * 86_400)));
        assert_eq!(read(&serde_json::to_string(&vault).unwrap()).unwrap(), vault);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (from, to, complaint) in [
            (r#""format":1"#, r#""format":2"#, "format 2"),
            (r#""format":1"#, r#""format":1,"x":1"#, "unknown field"),
            (r#""kms2""#, r#""kms1:5696""#, "given twice"),
            (r#""kms2""#, r#""kms 2""#, "no server"),
            (r#"["kms1:5696","kms2"]"#, "[]", "1 to 8 servers"),
            ("/t/k.pem", "k.pem", "no absolute path"),
            (r#""ca""#, r#""lies":1,"ca""#, "unknown field"),
            (r#""ca""#, r#""request_timeout_ms":1,"ca""#, "100 to 8000"),
            (
                r#""format":1"#,
                r#""format":1,"lease":{"lease_seconds":1,"outage_allowance_seconds":0}"#,
                "a lease has",
            ),
            (
                r#""format":1"#,
                r#""format":1,"lease":{"lease_seconds":60,"outage_allowance_seconds":0,"renew_seconds":0}"#,
                "renewed every 1 to 3600",
            ),
            (
                r#""format":1"#,
                r#""format":1,"lease":{"lease_seconds":60,"outage_allowance_seconds":0,"renew_seconds":31}"#,
                "at least twice as many",
            ),
            (r#""format":1"#, r#""format":1,"on_revocation":"panic""#, "unknown variant"),
            (r#""format":1"#, r#""format":1,"cryptoperiod_days":0"#, "a cryptoperiod has"),
        ] {
            let error = read(&KMIP.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(complaint), "{error}");
        }
        for (from, to) in [
            ("https://", "http://"),
            ("https://", "https://user@"),
            (r#""strongroom""#, r#""../sys/seal""#),
            (r#""strongroom""#, r#""a/b""#),
            ("/t/s", "s"),
        ] {
            assert!(read(&VAULT.replacen(from, to, 1)).is_err(), "{to}");
        }
    }
}
