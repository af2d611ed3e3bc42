//! The keys with which a provider signs (RFC 7517).

use jsonwebtoken::Algorithm;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use serde::Deserialize;
use serde_json::Value;
use strongroom_control::identity::NotIdentified;

use crate::http::Http;
use crate::id_token::Header;

/// The most keys of a provider.
const KEYS_MAX: usize = 64;

/// A provider's keys for signatures. Those of other kinds are left out, and so are secret ones,
/// which anybody could sign with.
#[derive(Clone, Debug)]
pub struct Keys(Vec<Jwk>);

#[derive(Deserialize)]
struct Document {
    keys: Vec<Value>,
}

impl Keys {
    /// Reads the keys of a provider.
    pub fn read(http: &Http, url: &str) -> Result<Self, NotIdentified> {
        let Document { keys } = http.get(url, None)?;
        if keys.len() > KEYS_MAX {
            return Err(NotIdentified::Unavailable(format!("{url} has {} keys", keys.len())));
        }
        let keys = keys.into_iter().filter_map(|key| serde_json::from_value(key).ok());
        Ok(Self(keys.filter(|key| !fitting(key).is_empty()).collect()))
    }

    /// The key that a token is signed with, as its header says. A token that names no key is that
    /// of the only one that fits.
    pub fn find(&self, header: &Header) -> Option<&Jwk> {
        let mut fitting = self.0.iter().filter(|key| {
            let is_named = header.key.is_none() || key.common.key_id == header.key;
            is_named && fitting(key).contains(&header.algorithm)
        });
        let found = fitting.next()?;
        fitting.next().is_none().then_some(found)
    }
}

/// The algorithms that a key may be used with.
fn fitting(key: &Jwk) -> Vec<Algorithm> {
    match &key.common.public_key_use {
        Some(PublicKeyUse::Signature) | None => {}
        Some(PublicKeyUse::Encryption | PublicKeyUse::Other(_)) => return Vec::new(),
    }
    let by_kind: &[Algorithm] = match &key.algorithm {
        AlgorithmParameters::RSA(_) => &[Algorithm::RS256, Algorithm::PS256],
        AlgorithmParameters::EllipticCurve(parameters) if parameters.curve == EllipticCurve::P256 => {
            &[Algorithm::ES256]
        }
        AlgorithmParameters::OctetKeyPair(parameters) if parameters.curve == EllipticCurve::Ed25519 => {
            &[Algorithm::EdDSA]
        }
        // Secret keys among them, with which everybody signs who can read the document.
        _ => &[],
    };
    let says = key.common.key_algorithm;
    by_kind
        .iter()
        .copied()
        .filter(|algorithm| says.is_none_or(|says| says == KeyAlgorithm::from(*algorithm)))
        .collect()
}
