//! Recipients: people and programs outside the site to whom alarms are sent.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::access::ShownOnce;
use crate::alarm::{Alarm, Severity};
use crate::checked_text::checked_text;
use crate::limits::{MAIL_ADDRESS_BYTES_MAX, WEBHOOK_AUTHORITY_BYTES_MAX, WEBHOOK_URL_BYTES_MAX};
use crate::name::Name;
use crate::object_only::object_only;

/// A recipient, and what has become of its messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Recipient {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: Name,
    /// How it is reached.
    pub means: Means,
    /// Its mail address, or the scheme and host of its webhook: the rest of that may be secret.
    pub address: String,
    /// The least severe alarms that it is sent.
    pub severity: Severity,
    /// When it last took a message with alarms, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_unix_ms: Option<u64>,
    /// The number of changes of alarms that it was not sent yet.
    pub waiting: u64,
    /// Why the last message did not arrive; absent if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<Failing>,
}

/// A new recipient.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewRecipient {
    /// The recipient.
    pub recipient: Recipient,
    /// The secret with which a webhook verifies messages, as of Standard Webhooks: `whsec_` and 32
    /// bytes in base64. Shown once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<ShownOnce>,
}

/// How a recipient is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Means {
    /// HTTPS.
    Webhook,
    /// Mail.
    Mail,
}

/// Messages that do not arrive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Failing {
    /// When the first one did not, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Why the last one did not.
    pub reason: String,
}

/// A request for a recipient.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateRecipient {
    /// Its name.
    pub name: Name,
    /// Where messages are sent.
    #[serde(deserialize_with = "object_only")]
    pub to: Destination,
    /// The least severe alarms that it is sent; by default all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,
}

/// Where messages are sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Destination {
    /// To a program, as JSON in a signed POST.
    Webhook {
        /// Its address, beginning with `https://`.
        url: WebhookUrl,
        /// The certificates of its authorities, as PEM; by default those of the control plane's
        /// machine.
        #[schema(value_type = Option<String>, max_length = 65536)]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        authorities: Option<Authorities>,
    },
    /// To a person, through the mail relay of the control plane's machine.
    Mail {
        /// The address.
        address: MailAddress,
    },
}

impl Destination {
    /// How it is reached.
    pub const fn means(&self) -> Means {
        match self {
            Self::Webhook { .. } => Means::Webhook,
            Self::Mail { .. } => Means::Mail,
        }
    }

    /// What may be shown of it.
    pub fn shown(&self) -> &str {
        match self {
            Self::Webhook { url, .. } => url.origin(),
            Self::Mail { address } => address.as_str(),
        }
    }
}

checked_text!(
    /// The address of a webhook. A part of it may be a secret of its owner, so it is not printed.
    WebhookUrl,
    check_url,
    schema(value_type = String, min_length = 9, max_length = 2048, pattern = r"^https://[^/?#@\s]+([/?][!-~]*)?$")
);
checked_text!(
    /// The certificates of authorities, as PEM.
    Authorities,
    check_authorities,
    schema(value_type = String, max_length = 65536)
);
checked_text!(
    /// A mail address.
    MailAddress,
    check_mail,
    schema(value_type = String, min_length = 3, max_length = 254,
        pattern = r"^[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9](-*[A-Za-z0-9])*([.][A-Za-z0-9](-*[A-Za-z0-9])*)*$")
);

impl WebhookUrl {
    /// Its scheme and host.
    pub fn origin(&self) -> &str {
        let host = self.0.get(SCHEME.len()..).unwrap_or_default();
        let end = host.find(['/', '?']).unwrap_or(host.len());
        self.0.get(..SCHEME.len() + end).unwrap_or_default()
    }
}

impl std::fmt::Debug for WebhookUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WebhookUrl({}/..)", self.origin())
    }
}

impl std::fmt::Debug for Authorities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Authorities({} bytes)", self.0.len())
    }
}

impl std::fmt::Debug for MailAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MailAddress({})", self.0)
    }
}

const SCHEME: &str = "https://";

fn check_url(text: &str) -> Result<(), String> {
    if text.len() > WEBHOOK_URL_BYTES_MAX {
        return Err(format!("a webhook's address has at most {WEBHOOK_URL_BYTES_MAX} bytes"));
    }
    let rest = text.strip_prefix(SCHEME).ok_or("a webhook's address begins with https://")?;
    let (host, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if host.is_empty() || host.contains(['#', '@']) || !host.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("write a webhook's address as in https://hooks.example.com/alarms".to_owned());
    }
    if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("a webhook's address has no spaces and only ASCII".to_owned());
    }
    Ok(())
}

fn check_authorities(text: &str) -> Result<(), String> {
    if text.len() > WEBHOOK_AUTHORITY_BYTES_MAX {
        return Err(format!("the certificates have at most {WEBHOOK_AUTHORITY_BYTES_MAX} bytes"));
    }
    Ok(())
}

fn check_mail(text: &str) -> Result<(), String> {
    let wrong = || format!("'{text}' is no mail address; write it as in ops@example.com");
    if text.len() > MAIL_ADDRESS_BYTES_MAX {
        return Err(format!("a mail address has at most {MAIL_ADDRESS_BYTES_MAX} bytes"));
    }
    let (local, domain) = text.split_once('@').ok_or_else(wrong)?;
    let is_local = |byte: u8| byte.is_ascii_alphanumeric() || b".!#$%&'*+/=?^_`{|}~-".contains(&byte);
    let is_label = |label: &str| {
        let edge = |at: Option<u8>| at.is_some_and(|byte| byte.is_ascii_alphanumeric());
        label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && edge(label.bytes().next())
            && edge(label.bytes().last())
    };
    if local.is_empty() || !local.bytes().all(is_local) || !domain.split('.').all(is_label) {
        return Err(wrong());
    }
    Ok(())
}

/// What has become of an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AlarmChange {
    /// It was raised, or has another severity.
    Raised,
    /// It is over.
    Cleared,
}

/// A change of an alarm, as recipients get it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Notice {
    /// The number of the event that reports it. A recipient can get it more than once.
    pub event: u64,
    /// When it happened, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// What has become of the alarm.
    pub change: AlarmChange,
    /// The alarm.
    pub alarm: Alarm,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Message {
    /// Changes of alarms, oldest first; none in a message that only shows that messages arrive.
    pub notices: Vec<Notice>,
    /// Whether earlier changes are lost: there were too many, and the recipient took none of them.
    pub missed: bool,
}

/// A request for a test of a recipient, without settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TestRecipient {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_shows_its_host_alone() {
        let url: WebhookUrl = "https://hooks.example.com/services/T0/secret".parse().unwrap();
        assert_eq!(url.origin(), "https://hooks.example.com");
        assert!(!format!("{url:?}").contains("secret"));
        let url: WebhookUrl = "https://[fd00::5]:8443?token=secret".parse().unwrap();
        assert_eq!(url.origin(), "https://[fd00::5]:8443");
    }

    #[test]
    fn wrong_addresses_are_refused() {
        for wrong in ["http://x/", "https://", "https:///x", "https://a@b/", "https://a b/", "https://x/\n"] {
            assert!(wrong.parse::<WebhookUrl>().is_err(), "{wrong}");
        }
        for wrong in ["ops", "@x", "a@", "a@-x", "a b@x", "a@x\r\nBcc: b@x", "a@b@c", "ä@x", "a@x..y"] {
            assert!(wrong.parse::<MailAddress>().is_err(), "{wrong}");
        }
        assert!("ops+night@mail.example.com".parse::<MailAddress>().is_ok());
    }
}
