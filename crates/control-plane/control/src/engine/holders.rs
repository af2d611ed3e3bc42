//! Who holds what a caller has shown: a bearer token, the cookie of a browser, or a key. Each is
//! stored in a form of its own, so that none counts as another.

use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::bearer;
use crate::client_key::ClientKey;
use crate::inventory::Index;
use crate::records::{CredentialUse, Principal};

/// What a caller has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// A bearer token, in its stored form.
    Bearer(String),
    /// The cookie of a browser's session, in its stored form.
    Cookie(String),
    /// A key, in TLS.
    Key(ClientKey),
}

impl Shown {
    /// A bearer token.
    pub fn bearer(token: &str) -> Self {
        Self::Bearer(bearer::ShownAs::Bearer.stored_form(token))
    }

    /// The secret in a cookie.
    pub fn cookie(secret: &str) -> Self {
        Self::Cookie(bearer::ShownAs::Cookie.stored_form(secret))
    }

    /// The form in which it is stored.
    pub fn stored_form(&self) -> &str {
        match self {
            Self::Bearer(stored) | Self::Cookie(stored) => stored,
            Self::Key(key) => key.credential(),
        }
    }
}

/// The holder of what was shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The name under which its requests are recorded.
    pub name: String,
    /// Who it is.
    pub principal: Principal,
}

/// Returns the holder of what was shown, if it counts now.
pub fn holder(index: &Index, shown: &Shown, now_unix_seconds: u64) -> Option<Holder> {
    match shown {
        Shown::Bearer(stored) => holder_of_token(index, stored, now_unix_seconds)
            .or_else(|| of_session(index, stored, now_unix_seconds)),
        Shown::Cookie(stored) => {
            if let Some(session) = index.token_sessions.get(stored) {
                let current = session.expires_unix_seconds > now_unix_seconds;
                return holder_of_token(index, &session.token_sha256, now_unix_seconds).filter(|_| current);
            }
            of_session(index, stored, now_unix_seconds)
        }
        Shown::Key(key) => {
            let known = index.credentials.get(key.credential())?;
            let CredentialUse::Token { name, key_sha256: Some(_), .. } = &known.use_ else { return None };
            let holder = || Holder { name: name.to_string(), principal: Principal::Token(known.id) };
            (known.expires_unix_seconds > now_unix_seconds).then(holder)
        }
    }
}

/// Returns the holder of a bearer token for programs, or of the first token.
pub(super) fn holder_of_token(index: &Index, stored: &str, now_unix_seconds: u64) -> Option<Holder> {
    if let Some(name) = first_token(index, stored) {
        return Some(Holder { name, principal: Principal::Machine });
    }
    let known = index.credentials.get(stored)?;
    match &known.use_ {
        CredentialUse::Token { name, key_sha256: None, .. } => {
            let holder = || Holder { name: name.to_string(), principal: Principal::Token(known.id) };
            (known.expires_unix_seconds > now_unix_seconds).then(holder)
        }
        CredentialUse::Token { key_sha256: Some(_), .. } | CredentialUse::Session => None,
    }
}

/// Returns the holder of a session that hangs on no token.
fn of_session(index: &Index, stored: &str, now_unix_seconds: u64) -> Option<Holder> {
    if let Some(session) = index.outside_sessions.get(stored) {
        let current = session.expires_unix_seconds > now_unix_seconds;
        let holder = || Holder { name: session.name.clone(), principal: Principal::Token(session.id) };
        return current.then(holder);
    }
    let known = index.credentials.get(stored)?;
    match &known.use_ {
        CredentialUse::Session if known.expires_unix_seconds > now_unix_seconds => {
            let user = index.users.get(&known.user?.to_string())?;
            Some(Holder { name: user.name.to_string(), principal: Principal::User(user.id) })
        }
        CredentialUse::Session | CredentialUse::Token { .. } => None,
    }
}

/// Returns the name of a token that permits everything. Compares with each of them, in constant
/// time.
fn first_token(index: &Index, stored: &str) -> Option<String> {
    let mut found = 0u32;
    for (number, known) in index.tokens.iter().enumerate() {
        let equal: Choice = known.sha256.as_bytes().ct_eq(stored.as_bytes());
        let place = u32::try_from(number).unwrap_or(u32::MAX - 1) + 1;
        found.conditional_assign(&place, equal);
    }
    let place = usize::try_from(found).ok()?.checked_sub(1)?;
    index.tokens.iter().nth(place).map(|known| known.name.clone())
}
