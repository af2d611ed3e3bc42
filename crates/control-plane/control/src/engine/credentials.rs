//! Tokens for programs, and sessions.

use std::net::IpAddr;

use strongroom_api::access::{
    AccessKind, CreateToken, NewSession, NewToken, Session, ShownOnce, SignIn, Token,
};
use strongroom_api::{ErrorCode, Privilege, Problem};
use strongroom_types::hex;
use uuid::Uuid;

use super::access::{AccessObject, no_such};
use super::accounts::{
    account_name_is_free, covers, must_have, no_random, place_of_scope, scope_of, scope_text, tokens,
    unchecked, with_role, within,
};
use super::browsers::token_session_view;
use super::emergency::not_in_emergency;
use super::outside::outside_session_view;
use super::wishes::Caller;
use super::{Control, Stop};
use crate::bearer::{self, ShownAs};
use crate::client_key::{self, ClientKey};
use crate::inventory::{Index, Row};
use crate::passwords::{PasswordHash, Verdict, step_of_code};
use crate::problems;
use crate::records::{
    CredentialRecord, CredentialUse, OutsideSessionRecord, Place, Principal, RoleAt, TokenSessionRecord,
    UserRecord,
};

/// The longest life of a token, in seconds: 366 days.
pub const TOKEN_LIFE_MAX_SECONDS: u64 = 366 * 86_400;
/// The life of a session, in seconds: a working day.
pub const SESSION_LIFE_SECONDS: u64 = 12 * 3600;
/// The most tokens.
const TOKENS_MAX: usize = 10_000;
/// The most sessions of one user, or that hang on one token; a new one ends the oldest.
pub(super) const SESSIONS_OF_ONE_MAX: usize = 16;
/// The key under which refused sign-ins are counted for the access log.
const REFUSED_SIGN_INS: &str = "sign-in";

/// How somebody signs in.
#[derive(Clone, Copy, Debug)]
pub struct SigningIn {
    /// The address that the request came from.
    pub from: IpAddr,
    /// The operation, for the access log.
    pub operation: &'static str,
    /// What the secret of the session is shown as.
    pub shown_as: ShownAs,
}

impl SigningIn {
    /// A program, by this operation.
    pub fn program(from: IpAddr, operation: &'static str) -> Self {
        Self { from, operation, shown_as: ShownAs::Bearer }
    }

    /// A browser.
    pub fn browser(from: IpAddr) -> Self {
        Self { from, operation: "page_sign_in", shown_as: ShownAs::Cookie }
    }

    /// Somebody of this name, who is not known yet.
    pub(super) fn caller(&self, name: &str) -> Caller {
        Caller { from: Some(self.from), operation: Some(self.operation), ..Caller::machine(name) }
    }
}

impl Control {
    /// Makes a token for programs.
    ///
    /// # Errors
    /// [`Problem`], as for all methods here.
    pub fn create_token(&self, caller: &Caller, wish: &CreateToken) -> Result<NewToken, Problem> {
        let secret = match &wish.certificate {
            Some(certificate) => Secret::Key(client_key::of_pem(certificate.as_str(), &wish.name)?),
            None => Secret::Bearer(bearer::fresh().map_err(no_random)?),
        };
        let id = Uuid::new_v4();
        let by_key = secret
            .key()
            .map_or_else(String::new, |key| format!(", by the key with SHA-256 {}", key.sha256()));
        let message = format!(
            "token {} was made, with role {} {}{by_key}",
            wish.name,
            wish.role,
            scope_text(&wish.scope)
        );
        let info = self.change(caller, message, |index, rights| {
            not_in_emergency(index, caller)?;
            let now = self.now_unix_ms() / 1000;
            if wish.expires_unix_seconds <= now || wish.expires_unix_seconds > now + TOKEN_LIFE_MAX_SECONDS {
                let message = format!("token {}: a token ends within 366 days from now", wish.name);
                return Err(problems::invalid(message).next("give it less time"));
            }
            account_name_is_free(index, &wish.name)?;
            within(tokens(index).count(), TOKENS_MAX, "tokens")?;
            let place = place_of_scope(index, rights, &wish.scope)?;
            let privileges = super::access::privileges_of(index, &wish.role)
                .ok_or_else(|| no_such(AccessObject::Role, wish.role.as_str()))?;
            covers(index, rights, place, &privileges)?;
            let user = match caller.principal {
                Principal::Machine => None,
                Principal::User(user) => Some(user),
                Principal::Token(_) => {
                    // It would outlive the token or session that made it.
                    must_have(rights, index, place, Privilege::Roles)?;
                    owner(index, caller)
                }
            };
            if index.credentials.get(&secret.credential()).is_some() {
                let message = format!("token {}: its key is that of another token", wish.name);
                return Err(Problem::new(ErrorCode::Conflict, message).next("make another key for it"));
            }
            let record = CredentialRecord {
                sha256: secret.credential(),
                id,
                user,
                use_: CredentialUse::Token {
                    name: wish.name.clone(),
                    role: RoleAt { role: wish.role.clone(), place },
                    key_sha256: secret.key().map(|key| key.sha256().to_owned()),
                },
                created_unix_seconds: now,
                expires_unix_seconds: wish.expires_unix_seconds,
            };
            let info =
                view(index, &record).ok_or_else(|| no_such(AccessObject::Token, wish.name.as_str()))?;
            Ok((info, with_role(index, self.draft().create(&record), &wish.role)))
        })?;
        Ok(NewToken { info, token: secret.bearer() })
    }

    /// Replaces a token by another one with the same role and end. The old one ends at once.
    pub fn rotate_token(&self, caller: &Caller, named: &str) -> Result<NewToken, Problem> {
        let token = bearer::fresh().map_err(no_random)?;
        let info = self.change(caller, format!("token {named} was rotated"), |index, rights| {
            not_in_emergency(index, caller)?;
            let known = own_token(index, caller, named)?;
            if let CredentialUse::Token { role, key_sha256, .. } = &known.use_ {
                if key_sha256.is_some() {
                    let message = format!("token {named} is a key, which only its owner can replace");
                    return Err(problems::invalid(message).next("make another one, and revoke this one"));
                }
                let privileges = super::access::privileges_of(index, &role.role).unwrap_or_default();
                covers(index, rights, role.place, &privileges)?;
            }
            let record = CredentialRecord {
                sha256: bearer::sha256(&token),
                created_unix_seconds: self.now_unix_ms() / 1000,
                ..CredentialRecord::clone(&known.record)
            };
            let info = view(index, &record).ok_or_else(|| no_such(AccessObject::Token, named))?;
            Ok((info, self.draft().remove(known).create(&record)))
        })?;
        Ok(NewToken { info, token: Some(token.into()) })
    }

    /// Whether a token is a key.
    pub fn knows_client_keys(&self) -> bool {
        let index = self.inventory.read();
        index
            .credentials
            .iter()
            .any(|one| matches!(&one.use_, CredentialUse::Token { key_sha256: Some(_), .. }))
    }

    /// Ends a token.
    pub fn revoke_token(&self, caller: &Caller, named: &str) -> Result<(), Problem> {
        self.change(caller, format!("token {named} was revoked"), |index, _| {
            let known = own_token(index, caller, named)?;
            Ok(((), self.draft().remove(known)))
        })
    }

    /// The tokens of a caller; all of them for one that may manage or review roles.
    pub fn list_tokens(&self, caller: &Caller) -> Vec<Token> {
        let index = self.inventory.read();
        views(&index, |token| is_own_token(&index, caller, token))
    }

    /// The sessions of a caller; all of them for one that may manage roles.
    pub fn list_sessions(&self, caller: &Caller) -> Vec<Session> {
        let index = self.inventory.read();
        let sessions = index.credentials.iter().filter(|one| one.use_ == CredentialUse::Session);
        let own = sessions.filter(|session| is_own_session(&index, caller, session));
        let of_users = own.filter_map(|session| session_view(&index, session));
        let outside = index.outside_sessions.iter();
        let outside = outside.filter(|session| is_own_outside_session(&index, caller, session));
        let now = self.now_unix_ms() / 1000;
        let of_tokens = index.token_sessions.iter();
        let of_tokens = of_tokens.filter(|session| is_own_token_session(&index, caller, session));
        let of_tokens = of_tokens.filter_map(|session| token_session_view(&index, session, now));
        of_users.chain(outside.map(|session| outside_session_view(session))).chain(of_tokens).collect()
    }

    /// Ends a session.
    pub fn end_session(&self, caller: &Caller, id: Uuid) -> Result<(), Problem> {
        self.change(caller, format!("session {id} was ended"), |index, _| {
            let mut sessions = index.credentials.iter().filter(|one| one.use_ == CredentialUse::Session);
            if let Some(session) = sessions.find(|one| one.id == id && is_own_session(index, caller, one)) {
                return Ok(((), self.draft().remove(session)));
            }
            let mut of_tokens = index.token_sessions.iter().filter(|one| one.id == id);
            if let Some(session) = of_tokens.find(|one| is_own_token_session(index, caller, one)) {
                return Ok(((), self.draft().remove(session)));
            }
            let found = index.outside_session(id);
            let own = found.filter(|session| is_own_outside_session(index, caller, session));
            let session = own.ok_or_else(|| no_such(AccessObject::Session, &id.to_string()))?;
            Ok(((), self.draft().remove(session)))
        })
    }

    /// Signs a user in. It takes about a second, for an unknown user as well.
    ///
    /// # Errors
    /// `unauthorized`, which does not say what was wrong.
    pub fn sign_in(
        &self,
        signing_in: &SigningIn,
        wish: &SignIn,
        hash: &dyn PasswordHash,
    ) -> Result<NewSession, Problem> {
        let caller = signing_in.caller(wish.user.as_str());
        let (user, compared) = {
            let index = self.inventory.read();
            let user = index.users.iter().find(|user| user.name == wish.user).cloned();
            // The time must not tell which users there are, and hashes differ in what they
            // cost: for an unknown user another one's is compared, whatever comes of it.
            let compared = user.clone().or_else(|| index.users.iter().next().cloned());
            (user, compared)
        };
        let verdict = match &compared {
            Some(user) => hash.verify(wish.password.expose(), &user.password).map_err(unchecked)?,
            None => Verdict::Wrong,
        };
        let refused = || -> Problem {
            let message = format!("sign-in as {} was refused", wish.user);
            let entry = caller.entry_of(AccessKind::SignInRefused, message);
            match self.record_limited(&caller, REFUSED_SIGN_INS, entry) {
                Ok(()) => Problem::new(ErrorCode::Unauthorized, "user, password or code is wrong")
                    .next("each code counts once: wait for the next one"),
                Err(problem) => problem,
            }
        };
        let (Some(user), Verdict::Right) = (user, verdict) else { return Err(refused()) };
        let token = bearer::fresh().map_err(no_random)?;
        let id = Uuid::new_v4();
        let session = self.race(|| {
            let (session, draft) = {
                let index = self.inventory.read();
                // The same user with the same password as was compared.
                let present = index.users.get(&user.id.to_string());
                let Some(present) = present.filter(|now| now.password == user.password) else {
                    return Ok::<_, Stop>(None);
                };
                let now = self.now_unix_ms() / 1000;
                let secret = hex_bytes(&present.totp_secret);
                let Some(step) = step_of_code(&secret, &wish.code, now, present.totp_step) else {
                    return Ok(None);
                };
                let used = UserRecord {
                    totp_step: step,
                    last_sign_in_unix_seconds: Some(now),
                    ..UserRecord::clone(&present.record)
                };
                let record = CredentialRecord {
                    sha256: signing_in.shown_as.stored_form(&token),
                    id,
                    user: Some(user.id),
                    use_: CredentialUse::Session,
                    created_unix_seconds: now,
                    expires_unix_seconds: now + SESSION_LIFE_SECONDS,
                };
                let mut old: Vec<_> = index
                    .credentials
                    .iter()
                    .filter(|one| one.user == Some(user.id) && one.use_ == CredentialUse::Session)
                    .collect();
                old.sort_unstable_by_key(|one| std::cmp::Reverse(one.created_unix_seconds));
                let mut draft = self.draft().replace(present, &used).create(&record);
                for one in old.into_iter().skip(SESSIONS_OF_ONE_MAX - 1) {
                    draft = draft.remove(one);
                }
                (session_view(&index, &record), draft)
            };
            let entry = caller.entry_of(AccessKind::SignedIn, format!("{} signed in", wish.user));
            self.commit_for(&caller, draft, entry)?;
            Ok(session)
        })?;
        session.map(|session| NewSession { session, token: token.into() }).ok_or_else(refused)
    }
}

/// What the holder of a new token shows.
enum Secret {
    Bearer(String),
    Key(ClientKey),
}

impl Secret {
    /// The form in which it is stored.
    fn credential(&self) -> String {
        match self {
            Self::Bearer(token) => bearer::sha256(token),
            Self::Key(key) => key.credential().to_owned(),
        }
    }

    fn key(&self) -> Option<&ClientKey> {
        match self {
            Self::Bearer(_) => None,
            Self::Key(key) => Some(key),
        }
    }

    fn bearer(self) -> Option<ShownOnce> {
        match self {
            Self::Bearer(token) => Some(token.into()),
            Self::Key(_) => None,
        }
    }
}

/// The user that a caller acts for.
fn owner(index: &Index, caller: &Caller) -> Option<Uuid> {
    match caller.principal {
        Principal::Machine => None,
        Principal::User(user) => Some(user),
        Principal::Token(id) => index.credentials.iter().find(|one| one.id == id).and_then(|one| one.user),
    }
}

fn manages_roles(index: &Index, caller: &Caller) -> bool {
    let rights = super::access::Rights::of(index, caller.principal);
    rights.at(index, Place::Site).has(Privilege::Roles)
}

fn is_own_token(index: &Index, caller: &Caller, token: &CredentialRecord) -> bool {
    let owner = owner(index, caller);
    manages_roles(index, caller) || (owner.is_some() && token.user == owner)
}

fn is_own_session(index: &Index, caller: &Caller, session: &CredentialRecord) -> bool {
    let own = match caller.principal {
        Principal::User(user) => session.user == Some(user),
        Principal::Machine | Principal::Token(_) => false,
    };
    own || manages_roles(index, caller)
}

fn is_own_outside_session(index: &Index, caller: &Caller, session: &OutsideSessionRecord) -> bool {
    caller.principal == Principal::Token(session.id) || manages_roles(index, caller)
}

fn is_own_token_session(index: &Index, caller: &Caller, session: &TokenSessionRecord) -> bool {
    let own = match caller.principal {
        Principal::Token(id) => index.credentials.get(&session.token_sha256).is_some_and(|one| one.id == id),
        Principal::Machine | Principal::User(_) => false,
    };
    own || manages_roles(index, caller)
}

/// The sessions that have not ended.
pub(super) fn current_sessions(index: &Index, now_unix_seconds: u64) -> Vec<Session> {
    let of_users = index.credentials.iter().filter(|one| one.use_ == CredentialUse::Session);
    let of_users = of_users.filter_map(|session| session_view(index, session));
    let outside = index.outside_sessions.iter().map(|session| outside_session_view(session));
    let of_tokens = index.token_sessions.iter();
    let of_tokens = of_tokens.filter_map(|session| token_session_view(index, session, now_unix_seconds));
    of_users
        .chain(outside)
        .chain(of_tokens)
        .filter(|session| session.expires_unix_seconds > now_unix_seconds)
        .collect()
}

/// The token with this name or id, if the caller may manage it.
fn own_token<'index>(
    index: &'index Index,
    caller: &Caller,
    named: &str,
) -> Result<&'index Row<CredentialRecord>, Problem> {
    let found = tokens(index).find(|(one, name, _)| name.as_str() == named || one.id.to_string() == named);
    let found = found.map(|(one, _, _)| one).filter(|one| is_own_token(index, caller, one));
    found.ok_or_else(|| no_such(AccessObject::Token, named))
}

/// Tokens as callers see them.
pub(super) fn views(index: &Index, which: impl Fn(&CredentialRecord) -> bool) -> Vec<Token> {
    index.credentials.iter().filter(|one| which(one)).filter_map(|one| view(index, one)).collect()
}

fn view(index: &Index, token: &CredentialRecord) -> Option<Token> {
    let CredentialUse::Token { name, role, key_sha256 } = &token.use_ else { return None };
    let user = token.user.and_then(|user| index.users.get(&user.to_string()));
    Some(Token {
        id: token.id,
        name: name.clone(),
        user: user.map(|user| user.name.clone()),
        role: role.role.clone(),
        scope: scope_of(index, role.place),
        created_unix_seconds: token.created_unix_seconds,
        expires_unix_seconds: token.expires_unix_seconds,
        key_sha256: key_sha256.clone(),
    })
}

fn session_view(index: &Index, session: &CredentialRecord) -> Option<Session> {
    let user = index.users.get(&session.user?.to_string())?;
    Some(Session {
        id: session.id,
        user: user.name.to_string(),
        created_unix_seconds: session.created_unix_seconds,
        expires_unix_seconds: session.expires_unix_seconds,
        groups: Vec::new(),
    })
}

/// The bytes of a record's hexadecimal text. A damaged one is empty, and no code fits it.
fn hex_bytes(text: &str) -> Vec<u8> {
    hex::decode(text).unwrap_or_default()
}
