//! Sessions of browsers: the page signs in, and the server keeps the secret of its session in a
//! cookie that no script reads.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::access::Password;
use crate::checked_text::checked_text;
use crate::emergency::{EmergencyReason, EmergencySecret};
use crate::identity::{ProviderAnswer, RedirectUrl};
use crate::limits::BEARER_TOKEN_BYTES_MAX;
use crate::name::Name;

/// The cookie with the secret of a session. Browsers take a name that begins so only from this
/// host itself, over TLS, for all of its paths (RFC 6265bis, 4.1.3.2).
pub const SESSION_COOKIE: &str = "__Host-strongroom";

/// The cookie with the secret of a sign-in by an identity provider that has begun.
pub const FLOW_COOKIE: &str = "__Host-strongroom-flow";

/// The header that the page sends with each request that may change something: no page of another
/// origin can send it without being allowed to, which nobody is.
pub const PAGE_HEADER: &str = "strongroom-page";

/// The value of that header.
pub const PAGE_HEADER_VALUE: &str = "1";

/// A request for a session of a browser.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "by", rename_all = "snake_case", deny_unknown_fields)]
pub enum PageSignIn {
    /// By a password and a second factor.
    Password {
        /// The user's name.
        user: Name,
        /// Its password.
        password: Password,
        /// The code that its authenticator shows. Each code is accepted once.
        #[schema(min_length = 6, max_length = 6, pattern = "^[0-9]{6}$")]
        code: String,
    },
    /// By a token for programs, or the first token. The session has the token's rights, and ends
    /// with it.
    Token {
        /// The token.
        token: BearerToken,
    },
    /// By an identity provider, with what the browser brought back from it. The sign-in began in
    /// the same browser.
    Provider {
        /// The state that the browser brought.
        state: ProviderAnswer,
        /// The code that the browser brought.
        code: ProviderAnswer,
        /// The issuer that the browser brought (RFC 9207), if there was one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        iss: Option<ProviderAnswer>,
    },
    /// By an emergency credential, which can then not be used again.
    Emergency {
        /// The secret. Case, spaces and dashes do not matter.
        secret: EmergencySecret,
        /// The reason, which everyone is told.
        reason: EmergencyReason,
    },
}

// `PageSession` would be a page of sessions to generators of clients.
/// A session of a browser. Its secret is in a cookie, and nowhere else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BrowserSession {
    /// Its id.
    pub session: Uuid,
    /// The name under which its requests are recorded: of a user or token, `PROVIDER:NAME`, or
    /// `emergency:NAME`.
    pub name: String,
    /// When it ends at the latest, in seconds since 1970.
    pub expires_unix_seconds: u64,
}

/// A request to begin a sign-in by an identity provider in a browser.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BeginPageSignIn {
    /// The provider, by its name.
    pub provider: Name,
    /// Where the provider sends the browser back to: the `page` of the provider.
    pub redirect: RedirectUrl,
}

/// A sign-in that has begun in a browser. Its secret is in a cookie, and nowhere else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BegunPageSignIn {
    /// The provider's page, to which the browser goes.
    pub authorization_url: String,
    /// The state that the browser carries back with the code.
    pub state: String,
    /// When it is too late to finish it, in seconds since 1970.
    pub expires_unix_seconds: u64,
}

/// Whether the caller is signed in, and the ways to sign in besides a token, which everyone may
/// know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SignInWays {
    /// Whether this request came from somebody who is signed in, as far as this server's own page
    /// made it. So a page learns that without a request that is refused.
    #[serde(default)]
    pub signed_in: bool,
    /// Whether there are users, who have passwords.
    pub passwords: bool,
    /// Identity providers.
    pub providers: Vec<ProviderWay>,
    /// Whether there are emergency credentials.
    pub emergency: bool,
}

/// An identity provider as everyone may know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProviderWay {
    /// Its name.
    pub name: Name,
    /// Where it sends browsers back to, at the address of this request; absent if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<String>,
}

/// What has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SignedOut {
    /// The number of sessions.
    pub sessions: u64,
}

checked_text!(
    /// A bearer token. It is not printed.
    BearerToken,
    check_token,
    schema(value_type = String, min_length = 1, max_length = 256, format = Password)
);

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(..)")
    }
}

fn check_token(text: &str) -> Result<(), String> {
    // What a header can have: no text has the hash of something else that is shown here.
    if text.is_empty()
        || text.len() > BEARER_TOKEN_BYTES_MAX
        || !text.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Err(format!("a token has 1 to {BEARER_TOKEN_BYTES_MAX} printable ASCII characters"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_browser_signs_in_with_is_read_and_not_printed() {
        for (text, secret) in [
            (r#"{"by":"password","user":"ada","password":"s3cret-s3cret","code":"123456"}"#, "s3cret"),
            (r#"{"by":"token","token":"strongroom-token-s3cret"}"#, "s3cret"),
            (r#"{"by":"provider","state":"s3cret","code":"s3cret"}"#, "s3cret"),
            (r#"{"by":"emergency","secret":"S3CRET","reason":"the provider is away"}"#, "S3CRET"),
        ] {
            let read: PageSignIn = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
            assert!(!format!("{read:?}").contains(secret), "{read:?}");
        }
        for text in [
            r#"{"by":"token","token":"a b"}"#,
            r#"{"by":"token","token":"\u0001abc"}"#,
            r#"{"by":"token","token":"abc","more":1}"#,
            r#"{"by":"token"}"#,
            r#"{"by":"cookie","token":"abc"}"#,
            r#"{"token":"abc"}"#,
        ] {
            assert!(serde_json::from_str::<PageSignIn>(text).is_err(), "{text}");
        }
    }
}
