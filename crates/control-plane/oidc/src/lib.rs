//! Asks identity providers who somebody is: [OpenID Connect] with the authorization code flow.
//!
//! - [`discovery`]: what a provider says of itself. [`keys`]: its keys. [`id_token`]: what it says
//!   of somebody, verified. [`exchange`]: a code becomes an ID token. [`http`]: requests to it.
//!
//! A provider is believed about its own users and nothing else. What it sends is of limited size,
//! comes from where it said under the issuer's name, and is refused as a whole if anything in it is
//! wrong. Signatures are verified by `jsonwebtoken`, with RS256, PS256, ES256 or EdDSA.
//!
//! [OpenID Connect]: https://openid.net/specs/openid-connect-core-1_0.html
#![forbid(unsafe_code)]

mod discovery;
mod exchange;
mod http;
mod id_token;
mod keys;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use strongroom_control::identity::{
    AuthorizationAnswer, AuthorizationRequest, Identity, IdentityProviders, NotIdentified,
};
use strongroom_control::records::IdentityProviderRecord;
use strongroom_types::unix_milliseconds_now;
use uuid::Uuid;
use zeroize::Zeroizing;

use discovery::Discovery;
use http::Http;
use keys::Keys;

/// The secrets of clients, in the control plane's home.
const DIRECTORY: &str = "identity-providers";
/// The longest secret, in bytes.
const SECRET_BYTES_MAX: u64 = 4096;
/// How long what a provider says of itself is believed.
const BELIEVED_FOR: Duration = Duration::from_secs(3600);
/// How long a provider that did not answer is not asked again, so that strangers who begin sign-ins
/// do not ask it all the time.
const FAILED_FOR: Duration = Duration::from_secs(5);
/// The least time between two readings of a provider's keys for tokens that name others.
const KEYS_PAUSE: Duration = Duration::from_secs(30);

/// The identity providers of a control plane.
pub struct Providers {
    secrets: PathBuf,
    known: Mutex<HashMap<Uuid, Arc<Mutex<Known>>>>,
}

/// What is known of a provider.
#[derive(Default)]
struct Known {
    discovery: Option<(Instant, Discovery)>,
    keys: Option<(Instant, Keys)>,
    /// When the keys were last read because a token named another one.
    keys_reread: Option<Instant>,
    failed: Option<(Instant, NotIdentified)>,
}

impl Providers {
    /// The providers of the control plane with this home, which exists.
    pub fn of(control: &Path) -> Self {
        Self { secrets: control.join(DIRECTORY), known: Mutex::default() }
    }

    fn secret_file(&self, provider: Uuid) -> PathBuf {
        self.secrets.join(format!("{provider}.secret"))
    }

    fn secret(&self, provider: &IdentityProviderRecord) -> Result<Option<Zeroizing<String>>, NotIdentified> {
        if !provider.has_secret {
            return Ok(None);
        }
        let unusable =
            |error: String| NotIdentified::Unavailable(format!("the secret of its client: {error}"));
        let content = strongroom_files::read(&self.secret_file(provider.id), SECRET_BYTES_MAX)
            .map_err(|error| unusable(error.to_string()))?;
        let text = String::from_utf8(content).map_err(|_| unusable("it is no text".to_owned()))?;
        Ok(Some(Zeroizing::new(text)))
    }

    fn known(&self, provider: Uuid) -> Arc<Mutex<Known>> {
        Arc::clone(self.known.lock().entry(provider).or_default())
    }
}

impl Known {
    /// What the provider says of itself.
    fn discovery(
        &mut self,
        http: &Http,
        provider: &IdentityProviderRecord,
    ) -> Result<Discovery, NotIdentified> {
        if let Some((read, discovery)) = &self.discovery
            && read.elapsed() < BELIEVED_FOR
        {
            return Ok(discovery.clone());
        }
        if let Some((at, error)) = &self.failed
            && at.elapsed() < FAILED_FOR
        {
            return Err(error.clone());
        }
        match Discovery::read(http, provider.issuer.as_str()) {
            Ok(discovery) => {
                self.failed = None;
                self.discovery = Some((Instant::now(), discovery.clone()));
                Ok(discovery)
            }
            Err(error) => {
                self.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// The provider's keys. They are read again for a token that none of them may have signed, but
    /// not all the time.
    fn keys(
        &mut self,
        http: &Http,
        discovery: &Discovery,
        token: &id_token::Header,
    ) -> Result<Keys, NotIdentified> {
        if let Some((read, keys)) = &self.keys
            && read.elapsed() < BELIEVED_FOR
        {
            let read_lately = self.keys_reread.is_some_and(|reread| reread.elapsed() < KEYS_PAUSE);
            if read_lately || keys.find(token).is_some() {
                return Ok(keys.clone());
            }
            self.keys_reread = Some(Instant::now());
        }
        let keys = Keys::read(http, &discovery.jwks_uri)?;
        self.keys = Some((Instant::now(), keys.clone()));
        Ok(keys)
    }
}

impl IdentityProviders for Providers {
    fn check(&self, provider: &IdentityProviderRecord) -> Result<(), NotIdentified> {
        let http = Http::of(provider)?;
        let discovery = Discovery::read(&http, provider.issuer.as_str())?;
        Keys::read(&http, &discovery.jwks_uri).map(drop)
    }

    fn keep_secret(&self, provider: Uuid, secret: &str) -> io::Result<()> {
        std::fs::create_dir_all(&self.secrets)?;
        strongroom_files::sync_directory(strongroom_files::directory_of(&self.secrets))?;
        strongroom_files::replace(&self.secret_file(provider), secret.as_bytes())
    }

    fn forget_secret(&self, provider: Uuid) -> io::Result<()> {
        self.known.lock().remove(&provider);
        match strongroom_files::remove(&self.secret_file(provider)) {
            // There was never a secret, nor a directory for one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map(drop),
        }
    }

    fn authorization_url(
        &self,
        provider: &IdentityProviderRecord,
        request: &AuthorizationRequest<'_>,
    ) -> Result<String, NotIdentified> {
        let http = Http::of(provider)?;
        let discovery = self.known(provider.id).lock().discovery(&http, provider)?;
        Ok(exchange::authorization_url(&discovery, provider, request))
    }

    fn identify(
        &self,
        provider: &IdentityProviderRecord,
        answer: &AuthorizationAnswer<'_>,
    ) -> Result<Identity, NotIdentified> {
        let http = Http::of(provider)?;
        let known = self.known(provider.id);
        let discovery = known.lock().discovery(&http, provider)?;
        // Before the code goes anywhere: one of another provider is not for this one's eyes.
        exchange::expect_issuer(&discovery, answer.issuer)?;
        let secret = self.secret(provider)?;
        let secret = secret.as_ref().map(|secret| secret.as_str());
        let tokens = exchange::redeem(&http, &discovery, provider, answer, secret)?;
        let header = id_token::Header::read(&tokens.id_token)?;
        let keys = known.lock().keys(&http, &discovery, &header)?;
        let expected = id_token::Expected {
            issuer: provider.issuer.as_str(),
            client_id: provider.client_id.as_str(),
            nonce: answer.request.nonce,
            now_unix_seconds: unix_milliseconds_now() / 1000,
        };
        let claims = id_token::verify(&tokens.id_token, &header, &keys, &expected)?;
        exchange::identity(&http, &discovery, provider, &tokens, &claims)
    }
}
