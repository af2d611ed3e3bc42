//! Sessions of browsers: those that hang on a token, and how all of them end.
//!
//! A browser signs in as programs do, by the same code; only its secret is another kind
//! ([`ShownAs`]). What is its own is a session that hangs on a token: a person with a token for
//! programs, or with the first token, sees the page with the token's rights, and the browser keeps
//! a secret that ends with the session, and not the token.

use strongroom_api::access::{AccessKind, NewSession, Session};
use strongroom_api::browser::{BearerToken, ProviderWay, SignInWays, SignedOut};
use strongroom_api::identity::PageUrl;
use strongroom_api::{ErrorCode, Problem};
use uuid::Uuid;

use super::accounts::no_random;
use super::credentials::{SESSION_LIFE_SECONDS, SESSIONS_OF_ONE_MAX, SigningIn};
use super::holders::{Holder, Shown, holder, holder_of_token};
use super::wishes::Caller;
use super::{Control, Stop};
use crate::bearer::{self, ShownAs};
use crate::inventory::{Draft, Index, Row};
use crate::problems;
use crate::records::{
    CredentialUse, Entrance, IdentityProviderRecord, OutsideSessionRecord, Principal, TokenSessionRecord,
};

/// The key under which refused sign-ins are counted for the access log.
const REFUSED_SIGN_INS: &str = "token-sign-in";

impl Control {
    /// Begins a session of a browser that hangs on a token.
    ///
    /// # Errors
    /// `unauthorized`.
    pub fn sign_in_by_token(
        &self,
        signing_in: &SigningIn,
        token: &BearerToken,
    ) -> Result<NewSession, Problem> {
        let stored = ShownAs::Bearer.stored_form(token.as_str());
        let secret = bearer::fresh().map_err(no_random)?;
        let id = Uuid::new_v4();
        let begun = self.race(|| {
            let (session, caller, draft) = {
                let index = self.inventory.read();
                let now = self.now_unix_ms() / 1000;
                let Some(holder) = holder_of_token(&index, &stored, now) else {
                    return Ok::<_, Stop>(None);
                };
                let end = now + SESSION_LIFE_SECONDS;
                let of_token = index.credentials.get(&stored).map(|token| token.expires_unix_seconds);
                let record = TokenSessionRecord {
                    sha256: signing_in.shown_as.stored_form(&secret),
                    id,
                    token_sha256: stored.clone(),
                    created_unix_seconds: now,
                    expires_unix_seconds: of_token.map_or(end, |of_token| of_token.min(end)),
                };
                let mut own: Vec<_> = hanging_on(&index, &stored).collect();
                own.sort_unstable_by_key(|one| std::cmp::Reverse(one.created_unix_seconds));
                let draft = self.draft().create(&record);
                let draft =
                    own.into_iter().skip(SESSIONS_OF_ONE_MAX - 1).fold(draft, |draft, one| draft.remove(one));
                let caller = signing_in.caller(&holder.name);
                (session_view(&record, &holder), caller, draft)
            };
            let message = format!("{} signed in by its token", caller.name);
            self.commit_for(&caller, draft, caller.entry_of(AccessKind::SignedIn, message))?;
            Ok(Some(session))
        })?;
        match begun {
            Some(session) => Ok(NewSession { session, token: secret.into() }),
            None => Err(self.refused_token(&signing_in.caller("?"))),
        }
    }

    fn refused_token(&self, caller: &Caller) -> Problem {
        let entry =
            caller.entry_of(AccessKind::SignInRefused, "sign-in by a token was refused: no such token");
        match self.record_limited(caller, REFUSED_SIGN_INS, entry) {
            Ok(()) => Problem::new(ErrorCode::Unauthorized, "the token is not known here, or has ended")
                .next("the first one is in the file control/token of the home; sessions of commands are no tokens"),
            Err(problem) => problem,
        }
    }

    /// Ends the session of a browser.
    ///
    /// # Errors
    /// `conflict` for a caller that has shown something else.
    pub fn sign_out(&self, caller: &Caller, shown: &Shown) -> Result<(), Problem> {
        let Shown::Cookie(stored) = shown else {
            let problem =
                problems::conflict("the request came with a token, and not from a browser that signed in");
            return Err(
                problem.next("`DELETE /v1/sessions/{session}` ends any session, and `strongroom logout`")
            );
        };
        self.change(caller, format!("{} signed out", caller.name), |index, _| {
            Ok(((), ended(index, stored, self.draft())))
        })
    }

    /// Ends all sessions of the caller, of browsers and of commands.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn sign_out_everywhere(&self, caller: &Caller, shown: &Shown) -> Result<SignedOut, Problem> {
        let message = format!("{} signed out everywhere", caller.name);
        self.change(caller, message, |index, _| {
            let mut draft = self.draft();
            let mut sessions = 0;
            let all = index.credentials.iter().filter(|one| match caller.principal {
                Principal::User(user) => one.user == Some(user) && one.use_ == CredentialUse::Session,
                Principal::Machine | Principal::Token(_) => false,
            });
            for one in all {
                (draft, sessions) = (draft.remove(one), sessions + 1);
            }
            let outside = match caller.principal {
                Principal::Token(id) => index.outside_session(id),
                Principal::Machine | Principal::User(_) => None,
            };
            for one in outside.into_iter().flat_map(|own| of_same_person(index, own)) {
                (draft, sessions) = (draft.remove(one), sessions + 1);
            }
            let stored = shown.stored_form();
            let token = index.token_sessions.get(stored).map_or(stored, |session| &session.token_sha256);
            for one in hanging_on(index, token) {
                (draft, sessions) = (draft.remove(one), sessions + 1);
            }
            Ok((SignedOut { sessions }, draft))
        })
    }

    /// Ends the session whose place in a browser another one has taken, if there is one.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn end_replaced(&self, signing_in: &SigningIn, shown: &Shown) -> Result<(), Problem> {
        let now = self.now_unix_ms() / 1000;
        let Some(former) = holder(&self.inventory.read(), shown, now) else { return Ok(()) };
        let caller = signing_in.caller(&former.name);
        let message =
            format!("the session of {} ended: another one took its place in the browser", former.name);
        self.change(&caller, message, |index, _| Ok(((), ended(index, shown.stored_form(), self.draft()))))
    }

    /// The ways to sign in besides a token, for somebody who is signed in or not. The provider's
    /// page is the one at this origin.
    pub fn sign_in_ways(&self, origin: Option<&str>, signed_in: bool) -> SignInWays {
        let index = self.inventory.read();
        let page = |provider: &IdentityProviderRecord| {
            let page = format!("{}/sign-in/{}", origin?, provider.name);
            let known = provider.pages.iter().map(PageUrl::as_str).any(|known| known == page);
            known.then_some(page)
        };
        let providers = index.identity_providers.iter();
        let way = |provider: &Row<IdentityProviderRecord>| ProviderWay {
            name: provider.name.clone(),
            page: page(provider),
        };
        SignInWays {
            signed_in,
            passwords: !index.users.is_empty(),
            providers: providers.map(way).collect(),
            emergency: !index.emergencies.is_empty(),
        }
    }
}

/// The transaction in which the session with this stored form ends, if it is there.
fn ended(index: &Index, stored: &str, draft: Draft) -> Draft {
    let session = index.credentials.get(stored).filter(|one| one.use_ == CredentialUse::Session);
    let draft = session.into_iter().fold(draft, |draft, one| draft.remove(one));
    let draft = index.outside_sessions.get(stored).into_iter().fold(draft, |draft, one| draft.remove(one));
    index.token_sessions.get(stored).into_iter().fold(draft, |draft, one| draft.remove(one))
}

/// The sessions that hang on the token with this stored form.
fn hanging_on<'index>(
    index: &'index Index,
    token: &'index str,
) -> impl Iterator<Item = &'index Row<TokenSessionRecord>> {
    index.token_sessions.iter().filter(move |session| session.token_sha256 == token)
}

/// The sessions of the person from outside whose session this is.
fn of_same_person<'index>(
    index: &'index Index,
    own: &'index OutsideSessionRecord,
) -> impl Iterator<Item = &'index Row<OutsideSessionRecord>> {
    index.outside_sessions.iter().filter(|one| match (&one.entrance, &own.entrance) {
        (
            Entrance::Provider { provider, subject, groups: _ },
            Entrance::Provider { provider: own_provider, subject: own_subject, groups: _ },
        ) => provider == own_provider && subject == own_subject,
        (Entrance::Emergency { credential }, Entrance::Emergency { credential: own_credential }) => {
            credential == own_credential
        }
        (Entrance::Provider { .. }, Entrance::Emergency { .. })
        | (Entrance::Emergency { .. }, Entrance::Provider { .. }) => false,
    })
}

/// A session that hangs on a token, if the token counts now.
pub(super) fn token_session_view(
    index: &Index,
    session: &TokenSessionRecord,
    now_unix_seconds: u64,
) -> Option<Session> {
    let holder = holder_of_token(index, &session.token_sha256, now_unix_seconds)?;
    Some(session_view(session, &holder))
}

fn session_view(session: &TokenSessionRecord, holder: &Holder) -> Session {
    Session {
        id: session.id,
        user: holder.name.clone(),
        created_unix_seconds: session.created_unix_seconds,
        expires_unix_seconds: session.expires_unix_seconds,
        groups: Vec::new(),
    }
}
