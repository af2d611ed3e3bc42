//! Sessions of people who are no users of this site: of identity providers, and by emergency
//! credentials.
//!
//! Such a session has the rights of the groups that it was issued with, as the roles of these
//! groups are at each moment. What it was issued with does not change: a provider is asked again
//! when the session is over, which is soon. Names of people from outside have a colon, and those of
//! users do not.

use std::net::IpAddr;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64ct::{Base64UrlUnpadded, Encoding};
use strongroom_api::access::{AccessKind, NewSession, Session};
use strongroom_api::identity::{BeginSignIn, BegunSignIn, FinishSignIn, ProviderText};
use strongroom_api::{ErrorCode, Problem};
use strongroom_serving::network_of;
use uuid::Uuid;

use super::accounts::no_random;
use super::credentials::SigningIn;
use super::flows::{FLOW_LIFE_MS, Flow};
use super::identity_providers::{find_provider, may_redirect, unusable};
use super::wishes::Caller;
use super::{Control, Stop};
use crate::bearer;
use crate::identity::{AuthorizationAnswer, AuthorizationRequest, Identity, NotIdentified};
use crate::inventory::{Draft, Index, Row};
use crate::problems;
use crate::records::{Entrance, IdentityProviderRecord, OutsideSessionRecord};

/// The most sessions of one person from outside; a new one ends the oldest.
const SESSIONS_OF_ONE_MAX: usize = 16;
/// The most sessions of people from outside.
const SESSIONS_MAX: usize = 10_000;
/// The most groups of one person. A provider with more is asked to name those that matter.
const GROUPS_MAX: usize = 200;
/// The random bytes of a state, a nonce and a verifier (RFC 7636, 7.1).
const RANDOM_BYTES: usize = 32;
/// The key under which refused sign-ins are counted for the access log.
const REFUSED_SIGN_INS: &str = "provider-sign-in";

impl Control {
    /// Begins a sign-in by an identity provider.
    ///
    /// # Errors
    /// [`Problem`], as for all methods here.
    pub fn begin_sign_in(
        &self,
        from: IpAddr,
        named: &str,
        wish: &BeginSignIn,
    ) -> Result<BegunSignIn, Problem> {
        let provider = find_provider(&self.inventory.read(), named).cloned()?;
        let redirect = wish.redirect.as_str();
        if !may_redirect(&provider, redirect) {
            let message = format!(
                "{redirect} is no place for browsers that come back from identity provider {named}: that is \
                 http://127.0.0.1:PORT/callback/{}, or one of its pages",
                provider.name
            );
            return Err(problems::invalid(message));
        }
        let now = self.now_unix_ms();
        let flow = Flow {
            provider: provider.id,
            redirect: redirect.to_owned(),
            state: random()?,
            nonce: random()?,
            verifier: random()?,
            network: network_of(from),
            begun_unix_ms: now,
        };
        let url = self.identities()?.authorization_url(&provider, &request_of(&flow));
        let authorization_url = url.map_err(|error| unusable(named, &error))?;
        let secret = random()?;
        let state = flow.state.clone();
        self.flows.begin(bearer::sha256(&secret), flow);
        let expires_unix_seconds = (now + FLOW_LIFE_MS) / 1000;
        Ok(BegunSignIn { authorization_url, state, flow: secret.into(), expires_unix_seconds })
    }

    /// Finishes a sign-in by an identity provider. A sign-in is finished once, whatever comes of
    /// it.
    ///
    /// # Errors
    /// `unauthorized`, which does not say what was wrong; the access log does.
    pub fn finish_sign_in(&self, signing_in: &SigningIn, wish: &FinishSignIn) -> Result<NewSession, Problem> {
        let caller = |name: String| signing_in.caller(&name);
        let FinishSignIn { flow, state, code, iss } = wish;
        let flow = self.flows.take(&bearer::sha256(flow.as_str()), self.now_unix_ms());
        let Some(flow) = flow else {
            let reason = "it was not begun here, took too long, or was finished already";
            return Err(self.refused_sign_in(&caller("?".to_owned()), reason));
        };
        let provider = self.inventory.read().identity_providers.get(&flow.provider.to_string()).cloned();
        let Some(provider) = provider else {
            return Err(self.refused_sign_in(&caller("?".to_owned()), "its identity provider was deleted"));
        };
        let unknown = caller(format!("{}:?", provider.name));
        if verify_slices_are_equal(state.as_str().as_bytes(), flow.state.as_bytes()).is_err() {
            return Err(self.refused_sign_in(&unknown, "the browser brought the state of another sign-in"));
        }
        let answer = AuthorizationAnswer {
            request: request_of(&flow),
            code: code.as_str(),
            issuer: iss.as_ref().map(|iss| iss.as_str()),
        };
        let identity = match self.identities()?.identify(&provider, &answer) {
            Ok(identity) => identity,
            Err(error @ NotIdentified::Unavailable(_)) => {
                let problem = unusable(provider.name.as_str(), &error);
                self.refused_sign_in(&unknown, &problem.message);
                return Err(problem);
            }
            Err(NotIdentified::Refused(reason)) => return Err(self.refused_sign_in(&unknown, &reason)),
        };
        let groups = match groups_of(&identity) {
            Ok(groups) => groups,
            Err(reason) => return Err(self.refused_sign_in(&unknown, &reason)),
        };
        let caller = caller(format!("{}:{}", provider.name, identity.user));
        self.admit_from_outside(
            signing_in,
            &caller,
            &Admittance { provider: &provider, identity: &identity, groups },
        )
    }

    /// Begins the session of somebody whom a provider has identified.
    fn admit_from_outside(
        &self,
        signing_in: &SigningIn,
        caller: &Caller,
        somebody: &Admittance<'_>,
    ) -> Result<NewSession, Problem> {
        let Admittance { provider, identity, groups } = somebody;
        let token = bearer::fresh().map_err(no_random)?;
        let id = Uuid::new_v4();
        let message = format!(
            "{} signed in: subject {} of {}, groups {}",
            caller.name,
            printable(&identity.subject),
            provider.issuer,
            groups.iter().map(ProviderText::as_str).collect::<Vec<_>>().join(", ")
        );
        let session = self.race(|| {
            let (session, draft) = {
                let index = self.inventory.read();
                let now = self.now_unix_ms() / 1000;
                let record = OutsideSessionRecord {
                    sha256: signing_in.shown_as.stored_form(&token),
                    id,
                    name: caller.name.clone(),
                    entrance: Entrance::Provider {
                        provider: provider.id,
                        subject: identity.subject.clone(),
                        groups: groups.clone(),
                    },
                    created_unix_seconds: now,
                    expires_unix_seconds: now + u64::from(provider.session_s),
                };
                match self.place_for(&index, provider, &record, &identity.subject) {
                    Ok(draft) => (outside_session_view(&record), draft),
                    Err(reason) => return Ok::<_, Stop>(Err(reason)),
                }
            };
            let entry = caller.entry_of(AccessKind::SignedIn, message.clone());
            self.commit_for(caller, draft, entry)?;
            Ok(Ok(session))
        })?;
        match session {
            Ok(session) => Ok(NewSession { session, token: token.into() }),
            Err(reason) => Err(self.refused_sign_in(caller, &reason)),
        }
    }

    /// The transaction that begins a session, or why there is none.
    fn place_for(
        &self,
        index: &Index,
        provider: &Row<IdentityProviderRecord>,
        record: &OutsideSessionRecord,
        subject: &str,
    ) -> Result<Draft, String> {
        if index.identity_providers.get(&provider.id.to_string()).is_none() {
            return Err("its identity provider was deleted".to_owned());
        }
        if index.grants_by_groups(record).next().is_none() {
            return Err(format!("none of the groups of {} has a role", record.name));
        }
        let now = record.created_unix_seconds;
        let mut own = Vec::new();
        for one in index.outside_sessions.iter().filter(|one| one.expires_unix_seconds > now) {
            match &one.entrance {
                Entrance::Provider { provider: by, subject: of, .. } if *by == provider.id => {
                    if of == subject {
                        own.push(one);
                    } else if one.name == record.name {
                        // Records name who asked, so that a name is of one subject at a time.
                        return Err(format!("another subject has the name {} now", record.name));
                    }
                }
                Entrance::Provider { .. } | Entrance::Emergency { .. } => {}
            }
        }
        if own.len() < SESSIONS_OF_ONE_MAX && index.outside_sessions.len() >= SESSIONS_MAX {
            return Err(format!("there are {SESSIONS_MAX} sessions of people from outside"));
        }
        own.sort_unstable_by_key(|one| std::cmp::Reverse(one.created_unix_seconds));
        let draft = self.draft().create(record).present(provider);
        Ok(own.into_iter().skip(SESSIONS_OF_ONE_MAX - 1).fold(draft, |draft, one| draft.remove(one)))
    }

    /// Records that a sign-in was refused, and why. The answer does not say why.
    fn refused_sign_in(&self, caller: &Caller, reason: &str) -> Problem {
        let message = format!("sign-in was refused: {}", printable(reason));
        let entry = caller.entry_of(AccessKind::SignInRefused, message);
        match self.record_limited(caller, REFUSED_SIGN_INS, entry) {
            Ok(()) => {
                Problem::new(ErrorCode::Unauthorized, "the identity provider's answer gives no session")
                    .next("begin again; the access log says what is wrong")
            }
            Err(problem) => problem,
        }
    }
}

/// Somebody whom a provider has identified.
struct Admittance<'found> {
    provider: &'found Row<IdentityProviderRecord>,
    identity: &'found Identity,
    groups: Vec<ProviderText>,
}

fn request_of(flow: &Flow) -> AuthorizationRequest<'_> {
    AuthorizationRequest {
        redirect: &flow.redirect,
        state: &flow.state,
        nonce: &flow.nonce,
        verifier: &flow.verifier,
    }
}

fn random() -> Result<String, Problem> {
    let mut bytes = [0; RANDOM_BYTES];
    getrandom::fill(&mut bytes).map_err(no_random)?;
    Ok(Base64UrlUnpadded::encode_string(&bytes))
}

/// The groups of an identity whose name and groups can be written down as they are.
fn groups_of(identity: &Identity) -> Result<Vec<ProviderText>, String> {
    ProviderText::try_from(identity.user.clone())
        .map_err(|error| format!("the name of the user: {error}"))?;
    if identity.groups.len() > GROUPS_MAX {
        let count = identity.groups.len();
        return Err(format!("{count} groups are too many: let the provider name at most {GROUPS_MAX}"));
    }
    let groups = identity.groups.iter().cloned().map(ProviderText::try_from);
    groups.collect::<Result<_, _>>().map_err(|error| format!("the name of a group: {error}"))
}

/// A text in one line of a record.
fn printable(text: &str) -> String {
    text.chars().map(|one| if one.is_control() { ' ' } else { one }).take(500).collect()
}

pub(super) fn outside_session_view(session: &OutsideSessionRecord) -> Session {
    let groups = match &session.entrance {
        Entrance::Provider { groups, .. } => groups.clone(),
        Entrance::Emergency { .. } => Vec::new(),
    };
    Session {
        id: session.id,
        user: session.name.clone(),
        created_unix_seconds: session.created_unix_seconds,
        expires_unix_seconds: session.expires_unix_seconds,
        groups,
    }
}
