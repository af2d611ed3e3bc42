//! Webhooks: JSON in a POST, signed with the recipient's secret (Standard Webhooks 1.0.0, `v1`).

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::{hmac, rand};
use base64ct::{Base64, Encoding};
use serde::Serialize;
use strongroom_api::recipient::{Authorities, Message, Notice, WebhookUrl};
use strongroom_control::courier::Undelivered;
use strongroom_serving::{client_of, machine_roots, roots_of};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use ureq::Agent;
use uuid::Uuid;

/// How long a program may take to accept a message.
const WITHIN: Duration = Duration::from_secs(15);
/// The length of the key and of each secret, in bytes.
const KEY_BYTES: usize = 32;

/// The key of which the secrets of all recipients are made. None is stored.
pub struct SigningKey(hmac::Key);

/// The secret of a recipient.
pub struct Secret([u8; KEY_BYTES]);

impl SigningKey {
    /// Reads the key, or makes it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let bytes = match strongroom_files::read(path, KEY_BYTES as u64) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut fresh = [0; KEY_BYTES];
                rand::fill(&mut fresh).map_err(|_| io::Error::other("there are no random numbers"))?;
                strongroom_files::create(path, &fresh)?;
                fresh.to_vec()
            }
            Err(error) => return Err(error),
        };
        if bytes.len() != KEY_BYTES {
            let wrong = format!("{} has {} bytes in the place of {KEY_BYTES}", path.display(), bytes.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, wrong));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    /// The secret of a recipient.
    pub fn secret_of(&self, recipient: Uuid) -> Secret {
        let tag = hmac::sign(&self.0, recipient.as_bytes());
        let mut secret = [0; KEY_BYTES];
        secret.copy_from_slice(tag.as_ref());
        Secret(secret)
    }
}

impl Secret {
    /// The secret as its owner gets it.
    pub fn shown(&self) -> String {
        format!("whsec_{}", Base64::encode_string(&self.0))
    }

    /// The signature of a message.
    fn sign(&self, id: &str, at_unix_seconds: u64, body: &[u8]) -> String {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &self.0));
        context.update(format!("{id}.{at_unix_seconds}.").as_bytes());
        context.update(body);
        format!("v1,{}", Base64::encode_string(context.sign().as_ref()))
    }
}

#[derive(Serialize)]
struct Body<'message> {
    #[serde(rename = "type")]
    kind: &'static str,
    timestamp: String,
    data: Data<'message>,
}

#[derive(Serialize)]
struct Data<'message> {
    notices: &'message [Notice],
    missed: bool,
}

/// A client that trusts these authorities, or those of this machine.
pub fn client(authorities: Option<&Authorities>) -> Result<Agent, Undelivered> {
    let roots = match authorities {
        Some(pem) => roots_of(pem.as_str().as_bytes()).map_err(|error| {
            Undelivered(format!("the certificates of the webhook's authorities: {error}"))
        })?,
        None => machine_roots().map_err(|error| Undelivered(error.to_string()))?,
    };
    let client = client_of(roots)
        .timeout_global(Some(WITHIN))
        .max_idle_connections(0)
        .max_idle_connections_per_host(0);
    Ok(client.build().new_agent())
}

/// Sends a message.
pub fn post(
    key: &SigningKey,
    recipient: Uuid,
    url: &WebhookUrl,
    authorities: Option<&Authorities>,
    message: &Message,
) -> Result<(), Undelivered> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let Message { notices, missed } = message;
    let (kind, id) = match (notices.first(), notices.last()) {
        (Some(first), Some(last)) => {
            ("alarms", format!("msg_{}_{}_{}", recipient.simple(), first.event, last.event))
        }
        _ => ("test", format!("msg_{}_test_{}", recipient.simple(), now.as_millis())),
    };
    let at = OffsetDateTime::UNIX_EPOCH + now;
    let body = Body {
        kind,
        timestamp: at.format(&Rfc3339).map_err(|error| Undelivered(error.to_string()))?,
        data: Data { notices, missed: *missed },
    };
    let body = serde_json::to_vec(&body).map_err(|error| Undelivered(error.to_string()))?;
    let signature = key.secret_of(recipient).sign(&id, now.as_secs(), &body);
    let request = client(authorities)?
        .post(url.as_str())
        .content_type("application/json")
        .header("webhook-id", &id)
        .header("webhook-timestamp", now.as_secs().to_string())
        .header("webhook-signature", signature);
    match request.send(&body[..]) {
        Ok(answer) if answer.status().is_success() => Ok(()),
        Ok(answer) => {
            Err(Undelivered(format!("{} answers with status {}", url.origin(), answer.status().as_u16())))
        }
        Err(error) => Err(Undelivered(format!("{}: {}", url.origin(), without_address(&error)))),
    }
}

/// The error without the webhook's address, of which a part may be secret.
fn without_address(error: &ureq::Error) -> String {
    match error {
        ureq::Error::BadUri(_) | ureq::Error::RequireHttpsOnly(_) => "its address cannot be used".to_owned(),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_the_specification() {
        // The example of the specification's reference libraries.
        let secret = Base64::decode_vec("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        let signed = hmac::sign(&key, b"msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330.{\"test\": 2432232314}");
        let signature = Base64::encode_string(signed.as_ref());
        assert_eq!(signature, "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_key_stays_and_each_recipient_has_its_own_secret() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("webhook.key");
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let shown = SigningKey::open(&path).unwrap().secret_of(one).shown();
        let again = SigningKey::open(&path).unwrap();
        assert_eq!(again.secret_of(one).shown(), shown);
        assert_ne!(again.secret_of(other).shown(), shown);
        std::fs::write(&path, [0; 31]).unwrap();
        assert!(SigningKey::open(&path).is_err(), "a damaged key");
    }
}
