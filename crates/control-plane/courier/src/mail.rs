//! Mail: what has become of alarms, as text for a person.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use lettre::message::Mailbox;
use lettre::message::header::ContentType;
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Certificate, CertificateStore, Tls, TlsParameters};
use lettre::{SmtpTransport, Transport};
use strongroom_api::alarm::Severity;
use strongroom_api::recipient::{AlarmChange, MailAddress, Message, Notice};
use strongroom_control::courier::Undelivered;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::relay::{MailRelay, Security};

/// How long a relay may take for each of its answers.
const WITHIN: Duration = Duration::from_secs(15);
/// The longest password, in bytes.
const PASSWORD_BYTES_MAX: u64 = 4096;
/// The longest subject, in characters.
const SUBJECT_MAX: usize = 120;

/// A connection to the relay, and its settings. Does not connect yet.
pub fn transport(settings: &Path) -> Result<(SmtpTransport, MailRelay), Undelivered> {
    let unusable = |what: &str, reason: &dyn std::fmt::Display| {
        Undelivered(format!("the mail relay cannot be used: {what}: {reason}"))
    };
    let relay = MailRelay::read(settings).map_err(|error| Undelivered(error.to_string()))?;
    let address = &relay.relay;
    let tls = match address.security {
        Security::OnMachine => Tls::None,
        Security::Tls | Security::StartTls => {
            let mut parameters = TlsParameters::builder(address.host.clone());
            if let Some(path) = &relay.ca_file {
                let pem = fs::read(path).map_err(|error| unusable(&path.display().to_string(), &error))?;
                let certificate = Certificate::from_pem(&pem)
                    .map_err(|error| unusable(&path.display().to_string(), &error))?;
                parameters =
                    parameters.certificate_store(CertificateStore::None).add_root_certificate(certificate);
            }
            let parameters = parameters.build_rustls().map_err(|error| unusable("TLS", &error))?;
            match address.security {
                Security::Tls => Tls::Wrapper(parameters),
                Security::StartTls | Security::OnMachine => Tls::Required(parameters),
            }
        }
    };
    let mut transport =
        SmtpTransport::builder_dangerous(&address.host).port(address.port).tls(tls).timeout(Some(WITHIN));
    if let (Some(user), Some(path)) = (&relay.user, &relay.password_file) {
        let password = strongroom_files::read(path, PASSWORD_BYTES_MAX)
            .map_err(|error| unusable(&path.display().to_string(), &error))?;
        let password = String::from_utf8(password)
            .map_err(|_| unusable(&path.display().to_string(), &"it is no text"))?;
        let password = password.trim_end_matches(['\r', '\n']).to_owned();
        transport = transport.credentials(Credentials::new(user.clone(), password));
    }
    Ok((transport.build(), relay))
}

/// Sends a message.
pub fn send(settings: &Path, to: &MailAddress, message: &Message) -> Result<(), Undelivered> {
    let (transport, relay) = transport(settings)?;
    let mailbox = |address: &MailAddress| {
        let parsed = address.as_str().parse();
        parsed.map(|address| Mailbox::new(None, address)).map_err(|error| Undelivered(format!("{error}")))
    };
    let mail = lettre::Message::builder()
        .from(mailbox(&relay.from)?)
        .to(mailbox(to)?)
        .subject(subject(message))
        .header(ContentType::TEXT_PLAIN)
        .body(text(message))
        .map_err(|error| Undelivered(error.to_string()))?;
    match transport.send(&mail) {
        Ok(answer) if answer.is_positive() => Ok(()),
        Ok(answer) => Err(Undelivered(format!("{} answers with status {}", relay.relay, answer.code()))),
        Err(error) => Err(Undelivered(format!("{}: {}", relay.relay, told(&error)))),
    }
}

/// An error with its reasons: the outer one alone only says that something failed.
fn told(error: &dyn std::error::Error) -> String {
    let mut all = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !all.contains(&inner_text) {
            let _ = write!(all, ": {inner_text}");
        }
        source = inner.source();
    }
    printable(&all)
}

fn subject(message: &Message) -> String {
    let worst = message.notices.iter().max_by_key(|notice| (is_raised(notice), notice.alarm.severity));
    let Some(worst) = worst else { return "[Strongroom] a test message".to_owned() };
    let more = match message.notices.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let text = format!("[Strongroom] {}: {}{more}", headline(worst), worst.alarm.message);
    printable(&text).chars().take(SUBJECT_MAX).collect()
}

fn is_raised(notice: &Notice) -> bool {
    match notice.change {
        AlarmChange::Raised => true,
        AlarmChange::Cleared => false,
    }
}

fn headline(notice: &Notice) -> &'static str {
    match (notice.change, notice.alarm.severity) {
        (AlarmChange::Cleared, _) => "over",
        (AlarmChange::Raised, Severity::Critical) => "critical",
        (AlarmChange::Raised, Severity::Warning) => "warning",
    }
}

fn text(message: &Message) -> String {
    let Message { notices, missed } = message;
    let mut text = String::new();
    if notices.is_empty() {
        text.push_str("This message shows that messages about alarms arrive here. Nothing is wrong.\n");
    }
    if *missed {
        text.push_str("There were earlier changes of alarms that are not listed any more.\n\n");
    }
    for notice in notices {
        text.push_str(&entry(notice));
    }
    text.push_str("What is wrong now: strongroom event alarms\n");
    text
}

fn entry(notice: &Notice) -> String {
    let Notice { event, at_unix_ms, change, alarm } = notice;
    let at = OffsetDateTime::from_unix_timestamp(i64::try_from(at_unix_ms / 1000).unwrap_or(0));
    let at = at.ok().and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default();
    let next = match change {
        AlarmChange::Raised => format!("  Next: {}\n", printable(&alarm.next_step)),
        AlarmChange::Cleared => String::new(),
    };
    format!(
        "{}: {}\n{next}  {} {}, {}, {at}, event {event}\n\n",
        headline(notice),
        printable(&alarm.message),
        alarm.object.kind,
        printable(&alarm.object.name),
        alarm.kind.as_str(),
    )
}

/// A text in one line, without control characters.
fn printable(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}
