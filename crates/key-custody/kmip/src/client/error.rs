//! Errors of calls: the server, the failure, and the next step.

use std::fmt;
use std::io;
use std::time::Duration;

use rustls::{AlertDescription, CertificateError};
use strongroom_memory::secret::SecretError;
use thiserror::Error;

use super::address::ServerAddress;
use super::call::Refusal;
use super::connection::{ConnectFailure, ExchangeCause};
use super::identity::TlsFilesError;
use crate::protocol::{Operation, ProtocolVersion};

/// The phase in which a call timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// All connections were in use.
    Queue,
    /// Connecting and shaking hands.
    Connect,
    /// Waiting for the answer. The request may or may not have been carried out.
    Answer,
}

/// Why a call failed.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The TLS files cannot be used.
    #[error(transparent)]
    TlsFiles(TlsFilesError),
    /// The server's name cannot stand in a certificate.
    #[error("'{name}' is no name that a server's certificate can have; give a DNS name or an IP address")]
    ServerName {
        /// The name.
        name: String,
    },
    /// The host's name has no address.
    #[error("{server}: the name of the host cannot be resolved ({source}); check it and this machine's DNS")]
    Resolve {
        /// The server's address.
        server: ServerAddress,
        /// The system's error.
        source: io::Error,
    },
    /// The connection failed.
    #[error("{server}: cannot connect ({source}); is the server running, and the port open to this machine?")]
    Connect {
        /// The server's address.
        server: ServerAddress,
        /// The system's error.
        source: io::Error,
    },
    /// The TLS handshake failed, or the session was ended.
    #[error("{server}: TLS failed ({source}); {}", tls_advice(.source))]
    Tls {
        /// The server's address.
        server: ServerAddress,
        /// The TLS library's error.
        source: rustls::Error,
    },
    /// The call timed out.
    #[error("{server}: {phase} after {} ms", .waited.as_millis())]
    TimedOut {
        /// The server's address.
        server: ServerAddress,
        /// The phase.
        phase: Phase,
        /// How long the call waited.
        waited: Duration,
    },
    /// The connection broke before the answer arrived. The request may or may not have been carried
    /// out.
    #[error("{server}: the connection broke before the answer came ({source}); the server's log may say why")]
    Lost {
        /// The server's address.
        server: ServerAddress,
        /// The system's error.
        source: io::Error,
    },
    /// The server refused the request.
    #[error("{server}: {refusal}")]
    Refused {
        /// The server's address.
        server: ServerAddress,
        /// The refused operation and the reason.
        refusal: Refusal,
    },
    /// The answer is invalid.
    #[error("{server}: the answer makes no sense: {reason}; is this a KMIP server?")]
    Protocol {
        /// The server's address.
        server: ServerAddress,
        /// What is wrong with it.
        reason: String,
    },
    /// Client and server share no version.
    #[error("{server}: it speaks KMIP {}, and this client {}", list(.theirs), list(.ours))]
    NoCommonVersion {
        /// The server's address.
        server: ServerAddress,
        /// The server's versions.
        theirs: Vec<ProtocolVersion>,
        /// The client's permitted versions.
        ours: Vec<ProtocolVersion>,
    },
    /// The agreed version lacks the operation.
    #[error("{server}: it speaks KMIP {version}, which has no {operation}")]
    OperationTooNew {
        /// The server's address.
        server: ServerAddress,
        /// The requested operation.
        operation: Operation,
        /// The agreed version.
        version: ProtocolVersion,
    },
    /// No memory for a key.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

impl ClientError {
    /// Whether the server did not answer; another one with the same keys may.
    pub fn is_without_answer(&self) -> bool {
        matches!(
            self,
            Self::Resolve { .. }
                | Self::Connect { .. }
                | Self::Tls { .. }
                | Self::TimedOut { .. }
                | Self::Lost { .. }
                | Self::Protocol { .. }
        )
    }

    /// Whether the request may nevertheless have been carried out.
    pub fn is_uncertain(&self) -> bool {
        matches!(
            self,
            Self::Lost { .. } | Self::TimedOut { phase: Phase::Answer, .. } | Self::Protocol { .. }
        )
    }

    /// The server's refusal, if there was one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal),
            _ => None,
        }
    }

    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::TlsFiles(_) => "tls_files",
            Self::ServerName { .. } => "server_name",
            Self::Resolve { .. } => "resolve",
            Self::Connect { .. } => "connect",
            Self::Tls { .. } => "tls",
            Self::TimedOut { .. } => "timed_out",
            Self::Lost { .. } => "connection_lost",
            Self::Refused { .. } => "refused",
            Self::Protocol { .. } => "protocol",
            Self::NoCommonVersion { .. } => "no_common_version",
            Self::OperationTooNew { .. } => "operation_too_new",
            Self::Secret(_) => "no_secret_memory",
        }
    }

    pub(super) fn of_connect(server: &ServerAddress, failure: ConnectFailure, waited: Duration) -> Self {
        let server = server.clone();
        match failure {
            ConnectFailure::Name(source) => Self::Resolve { server, source },
            ConnectFailure::Tcp(source) => Self::Connect { server, source },
            ConnectFailure::Tls(source) => Self::Tls { server, source },
            ConnectFailure::Silent => Self::TimedOut { server, phase: Phase::Connect, waited },
        }
    }

    pub(super) fn of_exchange(server: &ServerAddress, cause: ExchangeCause, waited: Duration) -> Self {
        let server = server.clone();
        match cause {
            ExchangeCause::Lost(source) => Self::Lost { server, source },
            ExchangeCause::Tls(source) => Self::Tls { server, source },
            ExchangeCause::Silent => Self::TimedOut { server, phase: Phase::Answer, waited },
            ExchangeCause::Message(error) => Self::Protocol { server, reason: error.to_string() },
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Queue => "all connections were still in use",
            Self::Connect => "no connection",
            Self::Answer => "no answer",
        })
    }
}

fn list(versions: &[ProtocolVersion]) -> String {
    match versions {
        [] => "no version that is known here".to_owned(),
        some => some.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// The next step for a TLS error; most come from a handful of mistakes.
fn tls_advice(error: &rustls::Error) -> &'static str {
    use CertificateError::{Expired, ExpiredContext, NotValidForName, NotValidForNameContext, UnknownIssuer};
    match error {
        rustls::Error::InvalidCertificate(Expired | ExpiredContext { .. }) => {
            "renew the server's certificate, or check this machine's clock"
        }
        rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) => {
            "give the name that the server's certificate has"
        }
        rustls::Error::InvalidCertificate(UnknownIssuer) => {
            "give the certificate of the authority that signed the server's"
        }
        rustls::Error::InvalidCertificate(_) => "check the server's certificate",
        rustls::Error::AlertReceived(alert) => match alert {
            AlertDescription::CertificateExpired => "renew this client's certificate",
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateRequired
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRevoked
            | AlertDescription::AccessDenied => {
                "the server does not take this client's certificate: have it admitted there"
            }
            AlertDescription::HandshakeFailure | AlertDescription::ProtocolVersion => {
                "both must have TLS 1.2 with AEAD cipher suites, or TLS 1.3"
            }
            _ => "the server's log says why",
        },
        rustls::Error::InvalidMessage(_) => "is this a TLS port?",
        _ => "check certificates and TLS versions of both sides",
    }
}
