//! The collector of a key server's audit log: syslog over TLS (RFC 5425).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde::{Deserialize, Serialize};
use strongroom_audit::syslog::Collector;
use strongroom_files::FileError;

use super::certificates::{read_certificates, read_pem};
use crate::error::CliError;

/// The port of syslog over TLS (RFC 5425, 4.1).
const SYSLOG_TLS_PORT: u16 = 6514;
/// The longest name of a cursor.
const CURSOR_NAME_BYTES_MAX: usize = 32;

/// A collector on the command line.
#[derive(Debug, Args)]
pub struct SyslogArguments {
    /// Collector to send the audit log to, by syslog over TLS [default port: 6514]
    #[arg(long, value_name = "HOST[:PORT]", requires = "syslog_ca")]
    syslog: Option<String>,

    /// Authority that signs the collector's certificate, PEM
    #[arg(long, value_name = "FILE", requires = "syslog")]
    syslog_ca: Option<PathBuf>,

    /// Client certificate for the collector, PEM
    #[arg(long, value_name = "FILE", requires = "syslog", requires = "syslog_key")]
    syslog_cert: Option<PathBuf>,

    /// Private key of the client certificate, PEM
    #[arg(long, value_name = "FILE", requires = "syslog_cert")]
    syslog_key: Option<PathBuf>,
}

/// A collector in a server's settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyslogSettings {
    host: String,
    port: u16,
    ca: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    certificate: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<PathBuf>,
}

impl SyslogArguments {
    /// The settings, if any were given. Paths become absolute.
    pub fn settings(&self) -> Result<Option<SyslogSettings>, CliError> {
        let (Some(collector), Some(ca)) = (&self.syslog, &self.syslog_ca) else { return Ok(None) };
        let (host, port) = host_and_port(collector)?;
        let [certificate, key] =
            [&self.syslog_cert, &self.syslog_key].map(|path| path.as_deref().map(absolute).transpose());
        Ok(Some(SyslogSettings { host, port, ca: absolute(ca)?, certificate: certificate?, key: key? }))
    }
}

impl SyslogSettings {
    /// The collector; fails if its files cannot be used.
    pub fn collector(&self) -> Result<Collector, CliError> {
        Ok(Collector {
            name: cursor_name(&self.host, self.port),
            host: self.host.clone(),
            port: self.port,
            tls: Arc::new(self.tls()?),
            origin: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        })
    }

    fn tls(&self) -> Result<ClientConfig, CliError> {
        let useless = |path: &Path, why: String| CliError::Usage(format!("{}: {why}", path.display()));
        let mut roots = RootCertStore::empty();
        for certificate in read_certificates(&self.ca)? {
            roots.add(certificate).map_err(|error| useless(&self.ca, error.to_string()))?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| useless(&self.ca, error.to_string()))?
            .with_root_certificates(roots);
        let (Some(certificate), Some(key)) = (&self.certificate, &self.key) else {
            return Ok(config.with_no_client_auth());
        };
        let pem = read_pem(key)?;
        let private = PrivateKeyDer::from_pem_slice(&pem)
            .map_err(|_| useless(key, "it holds no private key".to_owned()))?;
        config
            .with_client_auth_cert(read_certificates(certificate)?, private)
            .map_err(|error| useless(certificate, format!("it cannot be shown to the collector: {error}")))
    }
}

fn absolute(path: &Path) -> Result<PathBuf, CliError> {
    std::path::absolute(path)
        .map_err(|error| CliError::File(FileError { action: "find", path: path.to_owned(), error }))
}

/// `host`, `host:port`, `[address]` or `[address]:port`.
fn host_and_port(text: &str) -> Result<(String, u16), CliError> {
    let wrong =
        || CliError::Usage(format!("'{text}' is no collector; write HOST, HOST:PORT or [ADDRESS]:PORT"));
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(wrong)?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':').ok_or_else(wrong)?) })
        }
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Ok(SYSLOG_TLS_PORT), |port| port.parse().map_err(|_| wrong()))?;
    if host.is_empty() || port == 0 { Err(wrong()) } else { Ok((host.to_owned(), port)) }
}

/// A cursor's name from host and port, cut to its greatest length.
fn cursor_name(host: &str, port: u16) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
    let mut name = format!("-{port}");
    let room = CURSOR_NAME_BYTES_MAX - name.len();
    name.insert_str(0, &host.chars().map(plain).take(room).collect::<String>());
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_a_host_and_perhaps_a_port() {
        let read = |text: &str| host_and_port(text).ok();
        assert_eq!(read("logs.example.org"), Some(("logs.example.org".into(), 6514)));
        assert_eq!(read("logs.example.org:1"), Some(("logs.example.org".into(), 1)));
        assert_eq!(read("[::1]:6515"), Some(("::1".into(), 6515)));
        assert_eq!(read("[::1]"), Some(("::1".into(), 6514)));
        for wrong in ["", ":1", "a:", "a:0", "a:65536", "[::1", "[::1]6515", "a:b:1"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn cursors_have_names_that_files_may_have() {
        assert_eq!(cursor_name("logs.example.org", 6514), "logs-example-org-6514");
        let long = cursor_name(&"ä".repeat(200), 65535);
        assert!(long.len() <= CURSOR_NAME_BYTES_MAX && long.ends_with("-65535"), "{long}");
    }
}
