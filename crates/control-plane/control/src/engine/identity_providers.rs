//! Identity providers: which ones a site asks who somebody is.
//!
//! A provider does not change, except for its client's secret: a caller who could give it another
//! issuer would have the roles of its groups.

use std::sync::Arc;

use strongroom_api::access::CreateGrant;
use strongroom_api::identity::{
    CreateIdentityProvider, IdentityProvider, PageUrl, ProviderGroup, ProviderText, SetIdentityProvider,
};
use strongroom_api::limits::{
    IDENTITY_PROVIDERS_MAX, PROVIDER_PAGES_MAX, PROVIDER_SCOPES_MAX, PROVIDER_SESSION_DEFAULT_S,
    PROVIDER_SESSION_MAX_S, PROVIDER_SESSION_MIN_S,
};
use strongroom_api::{ErrorCode, Privilege, Problem, Reference};
use uuid::Uuid;

use super::Control;
use super::access::{AccessObject, Rights, no_such, privileges_of};
use super::accounts::{covers, must_have, taken, within};
use super::wishes::Caller;
use crate::identity::{IdentityProviders, NotIdentified};
use crate::inventory::{Index, Row, by_name_or_id};
use crate::problems;
use crate::records::{Entrance, IdentityProviderRecord, Place};

/// The claim with the name of a user, by default (OpenID Connect Core 1.0, 5.1).
const USER_CLAIM: &str = "preferred_username";
/// The claim with the groups of a user, by default.
const GROUPS_CLAIM: &str = "groups";
/// The name before the colon of those who come in by an emergency credential.
pub(super) const EMERGENCY: &str = "emergency";

/// To whom a role is given.
pub(super) enum Grantee<'wish> {
    User(&'wish Reference),
    Group(&'wish ProviderGroup),
}

impl<'wish> Grantee<'wish> {
    /// The one that a request names.
    pub fn of(wish: &'wish CreateGrant) -> Result<Self, Problem> {
        match (&wish.user, &wish.group) {
            (Some(user), None) => Ok(Self::User(user)),
            (None, Some(group)) => Ok(Self::Group(group)),
            (None, None) | (Some(_), Some(_)) => {
                Err(problems::invalid("a role is given to a user or to a group").next("name one of the two"))
            }
        }
    }
}

impl Control {
    /// Asks these identity providers from now on.
    pub fn identify_with(&self, providers: Arc<dyn IdentityProviders>) {
        self.identity_providers.get_or_init(|| providers);
    }

    pub(super) fn identities(&self) -> Result<&dyn IdentityProviders, Problem> {
        let none = || problems::conflict("this control plane asks no identity providers");
        self.identity_providers.get().map(|providers| &**providers).ok_or_else(none)
    }

    /// Makes an identity provider, which answers now. Its groups have no roles yet.
    ///
    /// # Errors
    /// [`Problem`], as for all methods here.
    pub fn create_identity_provider(
        &self,
        caller: &Caller,
        wish: &CreateIdentityProvider,
    ) -> Result<IdentityProvider, Problem> {
        let record = self.record_of(wish)?;
        let providers = self.identities()?;
        {
            let index = self.inventory.read();
            let rights = Rights::of(&index, caller.principal);
            must_have(&rights, &index, Place::Site, Privilege::Roles)?;
            provider_name_is_free(&index, &record)?;
        }
        providers.check(&record).map_err(|error| unusable(record.name.as_str(), &error))?;
        // Before the record, so that no provider is without the secret that it has.
        if let Some(secret) = &wish.client_secret {
            providers.keep_secret(record.id, secret.as_str()).map_err(|error| not_kept(&error))?;
        }
        let message = format!(
            "identity provider {} was made: {} as client {}",
            record.name, record.issuer, record.client_id
        );
        let made = self.change(caller, message, |index, _| {
            provider_name_is_free(index, &record)?;
            within(index.identity_providers.len(), IDENTITY_PROVIDERS_MAX, "identity providers")?;
            Ok((provider_view(&record), self.draft().create_named(&record)))
        });
        if made.is_err() {
            // A secret that stays behind belongs to no provider.
            let _ = providers.forget_secret(record.id);
        }
        made
    }

    fn record_of(&self, wish: &CreateIdentityProvider) -> Result<IdentityProviderRecord, Problem> {
        let CreateIdentityProvider {
            name,
            issuer,
            client_id,
            client_secret,
            scopes,
            user_claim,
            groups_claim,
            authorities,
            pages,
            session_s,
        } = wish;
        if name.as_str() == EMERGENCY {
            return Err(problems::invalid(format!("an identity provider is not called {EMERGENCY}")));
        }
        if scopes.len() > PROVIDER_SCOPES_MAX || pages.len() > PROVIDER_PAGES_MAX {
            let message = format!(
                "an identity provider has at most {PROVIDER_SCOPES_MAX} scopes and {PROVIDER_PAGES_MAX} pages"
            );
            return Err(problems::invalid(message));
        }
        if scopes.iter().any(|scope| scope.as_str().contains(char::is_whitespace)) {
            return Err(problems::invalid("a scope has no spaces: give each one on its own"));
        }
        let session_s = session_s.unwrap_or(PROVIDER_SESSION_DEFAULT_S);
        if !(PROVIDER_SESSION_MIN_S..=PROVIDER_SESSION_MAX_S).contains(&session_s) {
            let message =
                format!("a session lasts from {PROVIDER_SESSION_MIN_S} to {PROVIDER_SESSION_MAX_S} seconds");
            return Err(problems::invalid(message));
        }
        let claim = |given: &Option<ProviderText>, default: &str| match given {
            Some(given) => Ok(given.clone()),
            None => ProviderText::try_from(default.to_owned()).map_err(problems::invalid),
        };
        Ok(IdentityProviderRecord {
            id: Uuid::new_v4(),
            name: name.clone(),
            issuer: issuer.clone(),
            client_id: client_id.clone(),
            has_secret: client_secret.is_some(),
            scopes: scopes.clone(),
            user_claim: claim(user_claim, USER_CLAIM)?,
            groups_claim: claim(groups_claim, GROUPS_CLAIM)?,
            authorities: authorities.clone(),
            pages: pages.clone(),
            session_s,
            created_unix_seconds: self.now_unix_ms() / 1000,
        })
    }

    /// Replaces the secret of the client at a provider.
    pub fn set_identity_provider(
        &self,
        caller: &Caller,
        named: &str,
        wish: &SetIdentityProvider,
    ) -> Result<IdentityProvider, Problem> {
        let SetIdentityProvider { client_secret } = wish;
        let message = format!("identity provider {named} got another secret");
        let provider = self.change(caller, message, |index, rights| {
            let provider = find_provider(index, named)?;
            covers_groups(index, rights, provider)?;
            let changed = IdentityProviderRecord {
                has_secret: true,
                ..IdentityProviderRecord::clone(&provider.record)
            };
            Ok((provider_view(&changed), self.draft().replace(provider, &changed)))
        })?;
        // On record before it counts.
        self.identities()?
            .keep_secret(provider.id, client_secret.as_str())
            .map_err(|error| not_kept(&error))?;
        Ok(provider)
    }

    /// Deletes a provider with the roles of its groups and the sessions that it gave.
    pub fn delete_identity_provider(&self, caller: &Caller, named: &str) -> Result<(), Problem> {
        let id = self.change(caller, format!("identity provider {named} was deleted"), |index, rights| {
            let provider = find_provider(index, named)?;
            covers_groups(index, rights, provider)?;
            let mut draft = self.draft().remove_named(provider);
            for grant in index.group_grants.iter().filter(|grant| grant.provider == provider.id) {
                draft = draft.remove(grant);
            }
            let came_by_it = |entrance: &Entrance| match entrance {
                Entrance::Provider { provider: by, .. } => *by == provider.id,
                Entrance::Emergency { .. } => false,
            };
            for session in index.outside_sessions.iter().filter(|session| came_by_it(&session.entrance)) {
                draft = draft.remove(session);
            }
            Ok((provider.id, draft))
        })?;
        if let Err(error) = self.identities()?.forget_secret(id) {
            tracing::warn!(%id, %error, "the secret of an identity provider that was deleted stays behind");
        }
        Ok(())
    }

    /// The identity providers.
    pub fn list_identity_providers(&self) -> Vec<IdentityProvider> {
        self.inventory.read().identity_providers.iter().map(|provider| provider_view(provider)).collect()
    }
}

fn provider_name_is_free(index: &Index, record: &IdentityProviderRecord) -> Result<(), Problem> {
    match by_name_or_id(&index.identity_providers, record.name.as_str()) {
        Some(_) => Err(taken("identity provider", &record.name)),
        None => Ok(()),
    }
}

/// Refuses power over a provider whose groups may do more than the caller.
fn covers_groups(index: &Index, rights: &Rights, provider: &IdentityProviderRecord) -> Result<(), Problem> {
    for grant in index.group_grants.iter().filter(|grant| grant.provider == provider.id) {
        let privileges = privileges_of(index, &grant.role.role).unwrap_or_default();
        covers(index, rights, grant.role.place, &privileges)?;
    }
    Ok(())
}

/// A provider that does not do what it should.
pub(super) fn unusable(name: &str, error: &NotIdentified) -> Problem {
    let message = format!("identity provider {name} cannot be used: {error}");
    Problem::new(ErrorCode::IdentityProviderUnavailable, message)
        .next("see to what the message says, and ask again; users of this site sign in as before")
}

fn not_kept(error: &std::io::Error) -> Problem {
    Problem::new(ErrorCode::Unavailable, format!("the secret cannot be written down: {error}"))
        .next("see to the file system of the control plane's home, and ask again")
}

pub(super) fn find_provider<'index>(
    index: &'index Index,
    named: &str,
) -> Result<&'index Row<IdentityProviderRecord>, Problem> {
    by_name_or_id(&index.identity_providers, named)
        .ok_or_else(|| no_such(AccessObject::IdentityProvider, named))
}

pub(super) fn provider_view(record: &IdentityProviderRecord) -> IdentityProvider {
    IdentityProvider {
        id: record.id,
        name: record.name.clone(),
        issuer: record.issuer.clone(),
        client_id: record.client_id.clone(),
        has_secret: record.has_secret,
        scopes: record.scopes.clone(),
        user_claim: record.user_claim.clone(),
        groups_claim: record.groups_claim.clone(),
        pages: record.pages.clone(),
        session_s: record.session_s,
        created_unix_seconds: record.created_unix_seconds,
    }
}

/// Whether a provider may send a browser back there: to a program on the browser's own machine, at
/// a path that only this provider has, so that the answer of one is not taken for another's; or to
/// one of its pages.
pub(super) fn may_redirect(provider: &IdentityProviderRecord, redirect: &str) -> bool {
    if provider.pages.iter().map(PageUrl::as_str).any(|page| page == redirect) {
        return true;
    }
    let local = redirect.strip_prefix("http://127.0.0.1:").or_else(|| redirect.strip_prefix("http://[::1]:"));
    let Some((port, path)) = local.and_then(|local| local.split_once('/')) else { return false };
    port.parse::<u16>().is_ok_and(|number| number > 0 && number.to_string() == port)
        && path == format!("callback/{}", provider.name)
}
