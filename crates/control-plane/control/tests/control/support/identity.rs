//! Identity providers that know somebody by each code, once.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use strongroom_control::identity::{
    AuthorizationAnswer, AuthorizationRequest, Identity, IdentityProviders, NotIdentified,
};
use strongroom_control::records::IdentityProviderRecord;
use uuid::Uuid;

/// Who comes with a code.
#[derive(Clone)]
struct Somebody {
    provider: String,
    identity: Identity,
}

#[derive(Default)]
pub struct Vouching {
    codes: Mutex<HashMap<String, Somebody>>,
    pub secrets: Mutex<HashMap<Uuid, String>>,
    /// Whether providers answer.
    pub is_away: Mutex<bool>,
}

impl Vouching {
    pub fn of(shared: &Arc<Self>) -> Arc<dyn IdentityProviders> {
        Arc::clone(shared) as _
    }

    /// Lets somebody come with a code.
    pub fn knows(&self, code: &str, provider: &str, subject: &str, user: &str, groups: &[&str]) {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        let identity = Identity { subject: subject.to_owned(), user: user.to_owned(), groups };
        let somebody = Somebody { provider: provider.to_owned(), identity };
        self.codes.lock().insert(code.to_owned(), somebody);
    }

    fn answers(&self) -> Result<(), NotIdentified> {
        match *self.is_away.lock() {
            true => Err(NotIdentified::Unavailable("it does not answer".to_owned())),
            false => Ok(()),
        }
    }
}

impl IdentityProviders for Vouching {
    fn check(&self, _: &IdentityProviderRecord) -> Result<(), NotIdentified> {
        self.answers()
    }

    fn keep_secret(&self, provider: Uuid, secret: &str) -> std::io::Result<()> {
        self.secrets.lock().insert(provider, secret.to_owned());
        Ok(())
    }

    fn forget_secret(&self, provider: Uuid) -> std::io::Result<()> {
        self.secrets.lock().remove(&provider);
        Ok(())
    }

    fn authorization_url(
        &self,
        provider: &IdentityProviderRecord,
        request: &AuthorizationRequest<'_>,
    ) -> Result<String, NotIdentified> {
        self.answers()?;
        Ok(format!("{}/auth?state={}&nonce={}", provider.issuer, request.state, request.nonce))
    }

    fn identify(
        &self,
        provider: &IdentityProviderRecord,
        answer: &AuthorizationAnswer<'_>,
    ) -> Result<Identity, NotIdentified> {
        self.answers()?;
        let known = self.codes.lock().remove(answer.code);
        let known = known.filter(|known| known.provider == provider.name.as_str());
        known
            .map(|known| known.identity)
            .ok_or_else(|| NotIdentified::Refused("it refuses the code".to_owned()))
    }
}
