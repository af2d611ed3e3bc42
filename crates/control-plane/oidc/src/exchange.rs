//! The authorization code flow (RFC 6749, 4.1) with PKCE (RFC 7636): from a request to an identity.

use aws_lc_rs::digest;
use base64ct::{Base64, Base64UrlUnpadded, Encoding};
use serde::Deserialize;
use serde_json::Value;
use strongroom_control::identity::{AuthorizationAnswer, AuthorizationRequest, Identity, NotIdentified};
use strongroom_control::records::IdentityProviderRecord;
use zeroize::Zeroizing;

use crate::discovery::{Authentication, Discovery};
use crate::http::{Http, Refusal, escaped, form_text};
use crate::id_token::Claims;

/// The most characters of a provider's own words in a reason.
const WORDS_MAX: usize = 100;

/// The answer of the token endpoint.
#[derive(Deserialize)]
pub struct Tokens {
    pub id_token: String,
    #[serde(default)]
    access_token: Option<String>,
}

#[derive(Deserialize)]
struct TokenError {
    error: String,
}

/// The address of the provider's page at which a sign-in begins.
pub fn authorization_url(
    discovery: &Discovery,
    provider: &IdentityProviderRecord,
    request: &AuthorizationRequest<'_>,
) -> String {
    let challenge = digest::digest(&digest::SHA256, request.verifier.as_bytes());
    let challenge = Base64UrlUnpadded::encode_string(challenge.as_ref());
    let scopes = std::iter::once("openid").chain(provider.scopes.iter().map(|scope| scope.as_str()));
    let scopes = scopes.collect::<Vec<_>>().join(" ");
    let query = form_text(&[
        ("response_type", "code"),
        ("client_id", provider.client_id.as_str()),
        ("redirect_uri", request.redirect),
        ("scope", &scopes),
        ("state", request.state),
        ("nonce", request.nonce),
        ("code_challenge", &challenge),
        ("code_challenge_method", "S256"),
    ]);
    let endpoint = &discovery.authorization_endpoint;
    let separator = if endpoint.contains('?') { '&' } else { '?' };
    format!("{endpoint}{separator}{query}")
}

/// Refuses the answer of another provider than the one that was asked (RFC 9207).
pub fn expect_issuer(discovery: &Discovery, named: Option<&str>) -> Result<(), NotIdentified> {
    match named {
        Some(named) if named == discovery.issuer => Ok(()),
        None if !discovery.names_itself => Ok(()),
        Some(_) | None => {
            let reason = "what the browser brought is the answer of another provider";
            Err(NotIdentified::Refused(reason.to_owned()))
        }
    }
}

/// Redeems a code.
pub fn redeem(
    http: &Http,
    discovery: &Discovery,
    provider: &IdentityProviderRecord,
    answer: &AuthorizationAnswer<'_>,
    secret: Option<&str>,
) -> Result<Tokens, NotIdentified> {
    let client = provider.client_id.as_str();
    let mut form = vec![
        ("grant_type", "authorization_code"),
        ("code", answer.code),
        ("redirect_uri", answer.request.redirect),
        ("code_verifier", answer.request.verifier),
    ];
    let mut header = None;
    match secret {
        None => form.push(("client_id", client)),
        Some(secret) => match discovery.authentication()? {
            Authentication::Form => form.extend([("client_id", client), ("client_secret", secret)]),
            Authentication::Header => {
                let pair = Zeroizing::new(format!("{}:{}", escaped(client), escaped(secret)));
                header = Some(Zeroizing::new(format!("Basic {}", Base64::encode_string(pair.as_bytes()))));
            }
        },
    }
    let header = header.as_ref().map(|header| header.as_str());
    match http.post(&discovery.token_endpoint, &form, header)? {
        Ok(body) => serde_json::from_slice(&body)
            .map_err(|error| NotIdentified::Refused(format!("the answer for the code: {error}"))),
        Err(refusal) => Err(not_redeemed(&refusal)),
    }
}

fn not_redeemed(refusal: &Refusal) -> NotIdentified {
    let words =
        serde_json::from_slice::<TokenError>(&refusal.body).map(|error| error.error).unwrap_or_default();
    let words: String = words.chars().filter(|one| !one.is_control()).take(WORDS_MAX).collect();
    match (refusal.status, words.as_str()) {
        (400, "invalid_grant") => NotIdentified::Refused("the provider refuses the code".to_owned()),
        (status, words) => {
            NotIdentified::Unavailable(format!("the token endpoint answers with status {status} {words}"))
        }
    }
}

/// Who somebody is: as the ID token says or, where it does not, the UserInfo endpoint.
pub fn identity(
    http: &Http,
    discovery: &Discovery,
    provider: &IdentityProviderRecord,
    tokens: &Tokens,
    claims: &Claims,
) -> Result<Identity, NotIdentified> {
    let subject = claims.get("sub").and_then(Value::as_str).unwrap_or_default().to_owned();
    let (user_claim, groups_claim) = (provider.user_claim.as_str(), provider.groups_claim.as_str());
    let more = match (&discovery.userinfo_endpoint, &tokens.access_token) {
        (Some(url), Some(token))
            if claim(claims, user_claim).is_none() || claim(claims, groups_claim).is_none() =>
        {
            let more: Claims = http.get(url, Some(token))?;
            // It may be somebody else's (OpenID Connect Core 1.0, 5.3.2).
            if more.get("sub").and_then(Value::as_str) != Some(&subject) {
                return Err(NotIdentified::Refused(
                    "the UserInfo endpoint tells of somebody else".to_owned(),
                ));
            }
            more
        }
        _ => Claims::new(),
    };
    let find = |name: &str| claim(claims, name).or_else(|| claim(&more, name));
    let missing = |name: &str| NotIdentified::Refused(format!("the provider does not tell the claim {name}"));
    let user = find(user_claim).and_then(Value::as_str).ok_or_else(|| missing(user_claim))?.to_owned();
    let groups = match find(groups_claim) {
        Some(Value::String(only)) => vec![only.clone()],
        Some(Value::Array(all)) => {
            let all = all.iter().map(|one| one.as_str().map(str::to_owned));
            all.collect::<Option<Vec<_>>>().ok_or_else(|| missing(groups_claim))?
        }
        _ => return Err(missing(groups_claim)),
    };
    Ok(Identity { subject, user, groups })
}

/// A claim by its name, or by a JSON pointer.
fn claim<'claims>(claims: &'claims Claims, name: &str) -> Option<&'claims Value> {
    let Some(pointer) = name.strip_prefix('/') else { return claims.get(name) };
    let mut parts = pointer.split('/').map(|part| part.replace("~1", "/").replace("~0", "~"));
    let first = claims.get(&parts.next()?)?;
    parts.try_fold(first, |value, part| value.get(&part))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_is_found_by_its_name_or_by_a_pointer() {
        let claims = json!({ "https://x/groups": ["a"], "realm_access": { "roles": ["b"] } });
        let claims = claims.as_object().unwrap();
        assert_eq!(claim(claims, "https://x/groups"), Some(&json!(["a"])));
        assert_eq!(claim(claims, "/realm_access/roles"), Some(&json!(["b"])));
        assert_eq!(claim(claims, "/realm_access/others"), None);
        assert_eq!(claim(claims, "groups"), None);
    }
}
