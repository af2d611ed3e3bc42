//! What a provider says of itself (OpenID Connect Discovery 1.0).

use serde::Deserialize;
use strongroom_control::identity::NotIdentified;

use crate::http::Http;

/// A provider's endpoints, all of them HTTPS.
#[derive(Clone, Debug, Deserialize)]
pub struct Discovery {
    pub issuer: String,
    pub authorization_endpoint: String,
    pub token_endpoint: String,
    pub jwks_uri: String,
    #[serde(default)]
    pub userinfo_endpoint: Option<String>,
    #[serde(default)]
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    code_challenge_methods_supported: Option<Vec<String>>,
    /// Whether it names itself in the answers that browsers carry (RFC 9207).
    #[serde(default, rename = "authorization_response_iss_parameter_supported")]
    pub names_itself: bool,
}

/// How the client proves who it is at the token endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authentication {
    /// In the header (`client_secret_basic`).
    Header,
    /// In the form (`client_secret_post`).
    Form,
}

impl Discovery {
    /// Reads the document of an issuer, which has to be that issuer's.
    pub fn read(http: &Http, issuer: &str) -> Result<Self, NotIdentified> {
        let url = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let read: Self = http.get(&url, None)?;
        read.checked(issuer)
    }

    fn checked(self, issuer: &str) -> Result<Self, NotIdentified> {
        let wrong = |reason: String| Err(NotIdentified::Unavailable(reason));
        if self.issuer != issuer {
            return wrong(format!("its discovery document is that of another issuer, {:?}", self.issuer));
        }
        let endpoints = [&self.authorization_endpoint, &self.token_endpoint, &self.jwks_uri];
        if let Some(other) = endpoints.into_iter().chain(&self.userinfo_endpoint).find(|url| !is_https(url)) {
            return wrong(format!("{other:?} is no address that begins with https://"));
        }
        let challenges = self.code_challenge_methods_supported.as_ref();
        if challenges.is_some_and(|methods| !methods.iter().any(|method| method == "S256")) {
            return wrong("it does not support PKCE with S256".to_owned());
        }
        Ok(self)
    }

    /// How a client with a secret proves who it is. Without a list it is the header (OpenID Connect
    /// Discovery 1.0, 3).
    pub fn authentication(&self) -> Result<Authentication, NotIdentified> {
        let Some(methods) = &self.token_endpoint_auth_methods_supported else {
            return Ok(Authentication::Header);
        };
        let has = |method: &str| methods.iter().any(|known| known == method);
        if has("client_secret_basic") {
            Ok(Authentication::Header)
        } else if has("client_secret_post") {
            Ok(Authentication::Form)
        } else {
            let reason = "it takes no client secret, neither in a header nor in a form";
            Err(NotIdentified::Unavailable(reason.to_owned()))
        }
    }
}

fn is_https(url: &str) -> bool {
    url.strip_prefix("https://").is_some_and(|rest| {
        !rest.is_empty()
            && !rest.starts_with('/')
            && rest.bytes().all(|byte| byte.is_ascii_graphic())
            && !rest.contains(['@', '#', '\\'])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_elsewhere_are_refused() {
        for url in [
            "file:///etc/shadow",
            "http://127.0.0.1/",
            "https://",
            "https:///x",
            "https://a@b/",
            "gopher://x",
        ] {
            assert!(!is_https(url), "{url}");
        }
        assert!(is_https("https://id.example.com/token?x=1"));
    }
}
