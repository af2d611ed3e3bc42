//! Identity providers: servers outside that say who somebody is (OpenID Connect), and whose groups
//! have roles here.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::access::ShownOnce;
use crate::checked_text::checked_text;
use crate::limits::{
    ACTOR_NAME_BYTES_MAX, CLIENT_SECRET_BYTES_MAX, PROVIDER_ANSWER_BYTES_MAX, PROVIDER_TEXT_BYTES_MAX,
    PROVIDER_URL_BYTES_MAX,
};
use crate::name::Name;
use crate::recipient::Authorities;

/// An identity provider. It does not change, except for its secret: another issuer or client is
/// another provider, to whose groups nobody has given roles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IdentityProvider {
    /// Its id.
    pub id: Uuid,
    /// Its name, which the names of its users begin with.
    pub name: Name,
    /// Its issuer.
    pub issuer: IssuerUrl,
    /// The client that this site is there.
    pub client_id: ProviderText,
    /// Whether the client has a secret.
    pub has_secret: bool,
    /// What it is asked for besides `openid`.
    pub scopes: Vec<ProviderText>,
    /// The claim with the name of the user.
    pub user_claim: ProviderText,
    /// The claim with the groups of the user.
    pub groups_claim: ProviderText,
    /// The pages that it may send browsers back to.
    pub pages: Vec<PageUrl>,
    /// The length of a session, in seconds.
    pub session_s: u32,
    /// When it was made, in seconds since 1970.
    pub created_unix_seconds: u64,
}

/// A request for an identity provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateIdentityProvider {
    /// Its name, which the names of its users begin with. `emergency` is not one.
    pub name: Name,
    /// Its issuer, as its discovery document spells it.
    pub issuer: IssuerUrl,
    /// The client that this site is there.
    pub client_id: ProviderText,
    /// The secret of the client; absent for a public client, which has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<ClientSecret>,
    /// What it is asked for besides `openid`, such as `profile` or `groups`.
    #[schema(max_items = 16)]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<ProviderText>,
    /// The claim with the name of the user; by default `preferred_username`. One that begins with
    /// `/` is a JSON pointer (RFC 6901).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_claim: Option<ProviderText>,
    /// The claim with the groups of the user, a text or a list of texts; by default `groups`. One
    /// that begins with `/` is a JSON pointer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups_claim: Option<ProviderText>,
    /// The certificates of its authorities, as PEM; by default those of the control plane's
    /// machine.
    #[schema(value_type = Option<String>, max_length = 65536)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorities: Option<Authorities>,
    /// The pages that it may send browsers back to, besides programs on the browser's machine.
    #[schema(max_items = 4)]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pages: Vec<PageUrl>,
    /// The length of a session, in seconds; by default an hour.
    #[schema(minimum = 300, maximum = 43200)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_s: Option<u32>,
}

/// A request for another secret of the client at an identity provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetIdentityProvider {
    /// The secret.
    pub client_secret: ClientSecret,
}

/// A request to begin a sign-in by an identity provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BeginSignIn {
    /// Where the provider sends the browser back to: a program on the browser's machine
    /// (`http://127.0.0.1:PORT/callback/PROVIDER`, RFC 8252), or one of the provider's pages.
    pub redirect: RedirectUrl,
}

/// A sign-in that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BegunSignIn {
    /// The provider's page, for the browser.
    pub authorization_url: String,
    /// The state that the browser carries back with the code.
    pub state: String,
    /// The secret of the client that began the sign-in, with which it is finished. Browsers do not
    /// see it.
    pub flow: ShownOnce,
    /// When it is too late to finish it, in seconds since 1970.
    pub expires_unix_seconds: u64,
}

/// A request to finish a sign-in, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FinishSignIn {
    /// The secret of the one who began it.
    pub flow: ProviderAnswer,
    /// The state that the browser brought.
    pub state: ProviderAnswer,
    /// The code that the browser brought.
    pub code: ProviderAnswer,
    /// The issuer that the browser brought (RFC 9207), if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iss: Option<ProviderAnswer>,
}

/// A group of an identity provider. Groups of two providers are different, whatever their names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProviderGroup {
    /// The provider's name.
    pub provider: Name,
    /// The group's name there.
    pub group: ProviderText,
}

checked_text!(
    /// The issuer of an identity provider: an address without query.
    IssuerUrl,
    check_issuer,
    schema(value_type = String, min_length = 9, max_length = 1024, pattern = r"^https://[^/?#@\s]+(/[!-~]*)?$")
);
checked_text!(
    /// A page that an identity provider sends browsers back to.
    PageUrl,
    check_issuer,
    schema(value_type = String, min_length = 9, max_length = 1024, pattern = r"^https://[^/?#@\s]+(/[!-~]*)?$")
);
checked_text!(
    /// Where an identity provider sends a browser back to.
    RedirectUrl,
    check_redirect,
    schema(value_type = String, min_length = 8, max_length = 1024, pattern = "^https?://[!-~]+$")
);
checked_text!(
    /// The name of somebody who asks: of a user or token, or `PROVIDER:NAME` of somebody from
    /// outside.
    ActorName,
    check_actor,
    schema(value_type = String, min_length = 1, max_length = 320)
);
checked_text!(
    /// A name at an identity provider: of a client, a scope, a claim or a group.
    ProviderText,
    check_text,
    schema(value_type = String, min_length = 1, max_length = 256)
);
checked_text!(
    /// The secret of a client at an identity provider. It is not printed.
    ClientSecret,
    check_secret,
    schema(value_type = String, min_length = 1, max_length = 1024, format = Password)
);
checked_text!(
    /// What a browser carries back from an identity provider. It is not printed.
    ProviderAnswer,
    check_answer,
    schema(value_type = String, min_length = 1, max_length = 8192)
);

macro_rules! printed {
    ($($name:ident),*) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&self.0)
            }
        }
    )*};
}

macro_rules! not_printed {
    ($($name:ident),*) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(concat!(stringify!($name), "(..)"))
            }
        }
    )*};
}

printed!(ActorName, IssuerUrl, PageUrl, RedirectUrl, ProviderText);
not_printed!(ClientSecret, ProviderAnswer);

const SCHEME: &str = "https://";

fn check_issuer(text: &str) -> Result<(), String> {
    let wrong =
        || format!("'{text}' is no address of a provider; write it as in https://id.example.com/realm");
    if text.len() > PROVIDER_URL_BYTES_MAX {
        return Err(format!("an address of a provider has at most {PROVIDER_URL_BYTES_MAX} bytes"));
    }
    let rest = text.strip_prefix(SCHEME).ok_or_else(wrong)?;
    let host = rest.split('/').next().unwrap_or_default();
    let is_plain = rest.bytes().all(|byte| byte.is_ascii_graphic()) && !rest.contains(['?', '#', '@', '\\']);
    if host.is_empty() || !is_plain {
        return Err(wrong());
    }
    Ok(())
}

fn check_redirect(text: &str) -> Result<(), String> {
    if text.len() > PROVIDER_URL_BYTES_MAX || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("a redirect has at most {PROVIDER_URL_BYTES_MAX} printable ASCII characters"));
    }
    if !text.starts_with(SCHEME) && !text.starts_with("http://") {
        return Err("a redirect begins with https:// or, on the browser's machine, http://".to_owned());
    }
    Ok(())
}

fn check_text(text: &str) -> Result<(), String> {
    if text.is_empty() || text.len() > PROVIDER_TEXT_BYTES_MAX || text.chars().any(char::is_control) {
        return Err(format!(
            "a name at a provider has 1 to {PROVIDER_TEXT_BYTES_MAX} bytes and no control characters"
        ));
    }
    Ok(())
}

fn check_actor(text: &str) -> Result<(), String> {
    if text.is_empty() || text.len() > ACTOR_NAME_BYTES_MAX || text.chars().any(char::is_control) {
        return Err(format!("a name has 1 to {ACTOR_NAME_BYTES_MAX} bytes and no control characters"));
    }
    Ok(())
}

fn check_secret(text: &str) -> Result<(), String> {
    if text.is_empty() || text.len() > CLIENT_SECRET_BYTES_MAX || text.chars().any(char::is_control) {
        return Err(format!(
            "a client's secret has 1 to {CLIENT_SECRET_BYTES_MAX} bytes and no control characters"
        ));
    }
    Ok(())
}

fn check_answer(text: &str) -> Result<(), String> {
    if text.is_empty() || text.len() > PROVIDER_ANSWER_BYTES_MAX {
        return Err(format!("what a browser brings has 1 to {PROVIDER_ANSWER_BYTES_MAX} bytes"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_addresses_are_refused() {
        for wrong in [
            "http://id/",
            "https://",
            "https:///x",
            "https://a@b/",
            "https://a b/",
            "https://a/?x",
            "file:///etc",
        ] {
            assert!(wrong.parse::<IssuerUrl>().is_err(), "{wrong}");
        }
        assert!("https://id.example.com/realms/ops".parse::<IssuerUrl>().is_ok());
        assert!("ftp://127.0.0.1/".parse::<RedirectUrl>().is_err());
        assert!("a\u{7}b".parse::<ProviderText>().is_err());
    }

    #[test]
    fn secrets_are_not_printed() {
        let secret: ClientSecret = "s3cret".parse().unwrap();
        let code: ProviderAnswer = "s3cret".parse().unwrap();
        assert!(!format!("{secret:?} {code:?}").contains("s3cret"));
    }
}
