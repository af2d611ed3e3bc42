//! ID tokens, verified (OpenID Connect Core 1.0, 3.1.3.7).

use aws_lc_rs::constant_time::verify_slices_are_equal;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde_json::{Map, Value};
use strongroom_control::identity::NotIdentified;

use crate::keys::Keys;

/// The longest token, in bytes.
const TOKEN_BYTES_MAX: usize = 64 * 1024;
/// The longest subject, in bytes (OpenID Connect Core 1.0, 2).
const SUBJECT_BYTES_MAX: usize = 255;
/// How far a provider's clock may be off, in seconds.
const SKEW_S: u64 = 60;
/// The greatest age of a token, in seconds: it was made for the code that was just redeemed.
const AGE_MAX_S: u64 = 10 * 60;

/// The claims of a token.
pub type Claims = Map<String, Value>;

/// What a token says about its signature. It is not verified yet.
pub struct Header {
    /// The algorithm, one of those that are accepted.
    pub algorithm: Algorithm,
    /// The key's name.
    pub key: Option<String>,
}

/// What a token has to say.
pub struct Expected<'expected> {
    pub issuer: &'expected str,
    pub client_id: &'expected str,
    pub nonce: &'expected str,
    pub now_unix_seconds: u64,
}

fn refused(reason: impl std::fmt::Display) -> NotIdentified {
    NotIdentified::Refused(format!("the ID token is refused: {reason}"))
}

impl Header {
    /// Reads the header of a token.
    pub fn read(token: &str) -> Result<Self, NotIdentified> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(refused(format_args!("it has {} bytes", token.len())));
        }
        // Fails for `none`, which is no algorithm.
        let header = decode_header(token).map_err(refused)?;
        match header.alg {
            Algorithm::RS256 | Algorithm::PS256 | Algorithm::ES256 | Algorithm::EdDSA => {}
            other => return Err(refused(format_args!("it is signed with {other:?}"))),
        }
        Ok(Self { algorithm: header.alg, key: header.kid })
    }
}

/// Verifies a token, and returns what it says.
pub fn verify(
    token: &str,
    header: &Header,
    keys: &Keys,
    expected: &Expected<'_>,
) -> Result<Claims, NotIdentified> {
    let key = keys.find(header).ok_or_else(|| refused("no key of the provider fits it"))?;
    let key = DecodingKey::from_jwk(key).map_err(refused)?;
    let mut validation = Validation::new(header.algorithm);
    validation.leeway = SKEW_S;
    validation.validate_nbf = true;
    validation.set_issuer(&[expected.issuer]);
    validation.set_audience(&[expected.client_id]);
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    let claims = decode::<Claims>(token, &key, &validation).map_err(refused)?.claims;
    judge(&claims, expected)?;
    Ok(claims)
}

/// Judges what the library takes in more than one form, or not at all.
fn judge(claims: &Claims, expected: &Expected<'_>) -> Result<(), NotIdentified> {
    let text = |claim: &str| claims.get(claim).and_then(Value::as_str);
    if text("iss") != Some(expected.issuer) {
        return Err(refused("it is another issuer's"));
    }
    // A token for several audiences is for the one that it names as authorized.
    let is_ours_alone = match claims.get("aud") {
        Some(Value::String(only)) => only == expected.client_id,
        Some(Value::Array(all)) => match all.as_slice() {
            [only] => only == expected.client_id,
            several => several.iter().any(|one| one == expected.client_id) && claims.contains_key("azp"),
        },
        _ => false,
    };
    if !is_ours_alone {
        return Err(refused("it is for another client"));
    }
    if claims.get("azp").is_some_and(|azp| azp != expected.client_id) {
        return Err(refused("another client is authorized by it"));
    }
    let issued = claims
        .get("iat")
        .and_then(Value::as_f64)
        .ok_or_else(|| refused("it does not say when it was made"))?;
    let now = expected.now_unix_seconds;
    if issued > (now + SKEW_S) as f64 {
        return Err(refused("it was made in the future; compare the clocks"));
    }
    if issued < now.saturating_sub(AGE_MAX_S) as f64 {
        return Err(refused("it was made long ago; compare the clocks"));
    }
    let nonce = text("nonce").unwrap_or_default();
    if verify_slices_are_equal(nonce.as_bytes(), expected.nonce.as_bytes()).is_err() {
        return Err(refused("it is of another sign-in"));
    }
    match text("sub") {
        Some(subject) if (1..=SUBJECT_BYTES_MAX).contains(&subject.len()) => Ok(()),
        _ => Err(refused("it says of nobody who it is")),
    }
}
