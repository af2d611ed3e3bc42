//! The token of requests: from a file that another program maintains, or by AppRole.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use strongroom_memory::secret::SecretBytes;
use zeroize::{Zeroize, Zeroizing};

use super::http::Http;
use crate::config::{VaultLogin, misconfigured};
use crate::error::ProviderError;

/// The longest token or secret id, in bytes. Vault's have about a hundred, batch tokens some
/// hundred.
const TOKEN_BYTES_MAX: usize = 2048;

/// How long before its expiry a token is no longer used.
const RENEWED_BEFORE: Duration = Duration::from_secs(30);

pub(super) struct Login {
    method: VaultLogin,
    token: Mutex<Option<Token>>,
}

struct Token {
    secret: SecretBytes,
    ends: Option<Instant>,
}

#[derive(Serialize)]
struct AppRoleLogin<'a> {
    role_id: &'a str,
    secret_id: &'a str,
}

#[derive(Deserialize)]
struct LoginAnswer<'a> {
    #[serde(borrow)]
    auth: Auth<'a>,
}

#[derive(Deserialize)]
struct Auth<'a> {
    client_token: &'a str,
    /// Seconds; 0 for a token that does not expire.
    lease_duration: u64,
}

impl Login {
    pub(super) fn new(method: VaultLogin) -> Self {
        Self { method, token: Mutex::default() }
    }

    /// A token that should be valid.
    pub(super) fn token(&self, http: &Http) -> Result<SecretBytes, ProviderError> {
        match &self.method {
            // Read every time, because the program that maintains the file replaces it.
            VaultLogin::Token { file } => read_secret(file),
            VaultLogin::AppRole { mount, role_id, secret_id_file } => {
                let mut token = self.token.lock();
                let good = |token: &Token| token.ends.is_none_or(|ends| Instant::now() < ends);
                if let Some(token) = token.as_ref().filter(|token| good(token)) {
                    return Ok(token.secret.duplicate()?);
                }
                let new = app_role(http, mount, role_id, secret_id_file)?;
                Ok(token.insert(new).secret.duplicate()?)
            }
        }
    }

    /// Drops a refused token. Returns whether a new login may help.
    pub(super) fn forget(&self) -> bool {
        self.token.lock().take().is_some()
    }
}

fn app_role(http: &Http, mount: &str, role_id: &str, secret_id_file: &Path) -> Result<Token, ProviderError> {
    let secret_id = read_secret(secret_id_file)?;
    let secret_id = std::str::from_utf8(secret_id.expose())
        .map_err(|_| misconfigured(format!("{} holds no secret id", secret_id_file.display())))?;
    // Serialised into a buffer that does not grow.
    let mut body = Zeroizing::new(Vec::with_capacity(64 + 6 * (role_id.len() + secret_id.len())));
    serde_json::to_writer(&mut *body, &AppRoleLogin { role_id, secret_id }).map_err(misconfigured)?;
    let answer = http.post(&format!("auth/{mount}/login"), None, &body)?;
    if !answer.is_success() {
        return Err(match answer.error(http.url(), "login by AppRole") {
            // Vault answers a wrong role or secret id with "bad request", and a missing mount with
            // "not found".
            ProviderError::NoSuchKey => misconfigured(format!("{}: there is no auth/{mount}", http.url())),
            other => other,
        });
    }
    let parsed: LoginAnswer<'_> =
        serde_json::from_slice(&answer.body).map_err(|_| ProviderError::Unavailable {
            reason: format!("{}: its answer to a login makes no sense; is this a Vault?", http.url()),
        })?;
    let mut token = parsed.auth.client_token.as_bytes().to_vec();
    let secret = SecretBytes::from_slice_and_wipe(&mut token)?;
    let lease = Duration::from_secs(parsed.auth.lease_duration);
    let ends = (!lease.is_zero())
        .then(|| Instant::now().checked_add(lease.saturating_sub(RENEWED_BEFORE)))
        .flatten();
    Ok(Token { secret, ends })
}

/// The one line of a file, in secret memory.
fn read_secret(path: &Path) -> Result<SecretBytes, ProviderError> {
    let unreadable = |error: io::Error| misconfigured(format!("cannot read {}: {error}", path.display()));
    let mut file = File::open(path).map_err(unreadable)?;
    // The extra byte detects a longer file.
    let mut content = Zeroizing::new([0; TOKEN_BYTES_MAX + 1]);
    let mut length_bytes = 0;
    while length_bytes < content.len() {
        match file.read(&mut content[length_bytes..]).map_err(unreadable)? {
            0 => break,
            count => length_bytes += count,
        }
    }
    let line = content[..length_bytes].trim_ascii();
    if line.is_empty() || length_bytes > TOKEN_BYTES_MAX {
        return Err(misconfigured(format!("{} holds no token or secret id", path.display())));
    }
    let mut copy = line.to_vec();
    let secret = SecretBytes::from_slice_and_wipe(&mut copy);
    copy.zeroize();
    Ok(secret?)
}
