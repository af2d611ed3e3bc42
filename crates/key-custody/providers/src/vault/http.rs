//! Requests to a Vault: JSON over HTTPS (Vault HTTP API, v1), with a token.

use std::fs;
use std::io::Read;
use std::time::Duration;

use strongroom_memory::secret::SecretBytes;
use strongroom_serving::{client_of, roots_of};
use ureq::Agent;
use zeroize::Zeroizing;

use crate::config::{VaultConfig, misconfigured};
use crate::error::ProviderError;

/// The longest answer accepted, in bytes. Expected answers have some hundred.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// The header that Vault requires on every request, so that no browser can be tricked into sending
/// one.
const REQUEST_HEADER: &str = "X-Vault-Request";

/// A Vault.
pub(super) struct Http {
    agent: Agent,
    url: String,
    namespace: Option<String>,
}

/// A raw answer.
pub(super) struct Answer {
    pub(super) status: u16,
    /// May hold a key or token; wiped.
    pub(super) body: Zeroizing<Vec<u8>>,
}

impl Http {
    pub(super) fn new(config: &VaultConfig) -> Result<Self, ProviderError> {
        let unusable = |reason: String| misconfigured(format!("{}: {reason}", config.ca.display()));
        let pem = fs::read(&config.ca).map_err(|error| unusable(error.to_string()))?;
        let roots = roots_of(&pem).map_err(|error| unusable(error.to_string()))?;
        let agent = client_of(roots)
            // Received data, which may be a key, stays in a connection's buffers while it is open.
            .max_idle_connections(0)
            .max_idle_connections_per_host(0)
            .timeout_global(Some(Duration::from_millis(config.request_timeout_ms)))
            .build()
            .new_agent();
        let url = config.url.trim_end_matches('/').to_owned();
        Ok(Self { agent, url, namespace: config.namespace.clone() })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn get(&self, path: &str, token: Option<&SecretBytes>) -> Result<Answer, ProviderError> {
        let request = self.agent.get(format!("{}/v1/{path}", self.url));
        self.take(with_headers(request, self.namespace.as_deref(), token)?.call())
    }

    pub(super) fn post(
        &self,
        path: &str,
        token: Option<&SecretBytes>,
        body: &[u8],
    ) -> Result<Answer, ProviderError> {
        let request = self.agent.post(format!("{}/v1/{path}", self.url)).content_type("application/json");
        self.take(with_headers(request, self.namespace.as_deref(), token)?.send(body))
    }

    fn take(
        &self,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<Answer, ProviderError> {
        let unavailable =
            |reason: String| ProviderError::Unavailable { reason: format!("{}: {reason}", self.url) };
        let mut answer = answer.map_err(|error| unavailable(error.to_string()))?;
        let status = answer.status().as_u16();
        // Allocated once and never grown, so that no copy is left behind; the extra byte detects a
        // longer answer.
        let mut body = Zeroizing::new(vec![0; ANSWER_BYTES_MAX + 1]);
        let mut reader = answer.body_mut().as_reader();
        let mut length_bytes = 0;
        while length_bytes < body.len() {
            match reader.read(&mut body[length_bytes..]).map_err(|error| unavailable(error.to_string()))? {
                0 => break,
                count => length_bytes += count,
            }
        }
        if length_bytes > ANSWER_BYTES_MAX {
            return Err(unavailable(format!("its answer has more than {ANSWER_BYTES_MAX} bytes")));
        }
        body.truncate(length_bytes);
        Ok(Answer { status, body })
    }
}

fn with_headers<Any>(
    request: ureq::RequestBuilder<Any>,
    namespace: Option<&str>,
    token: Option<&SecretBytes>,
) -> Result<ureq::RequestBuilder<Any>, ProviderError> {
    let mut request = request.header(REQUEST_HEADER, "true");
    if let Some(namespace) = namespace {
        request = request.header("X-Vault-Namespace", namespace);
    }
    if let Some(token) = token {
        let mut value = ureq::http::HeaderValue::from_bytes(token.expose())
            .map_err(|_| misconfigured("the token of the Vault holds bytes that no token has"))?;
        value.set_sensitive(true);
        request = request.header("X-Vault-Token", value);
    }
    Ok(request)
}

impl Answer {
    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The error of an unsuccessful answer, from its status and Vault's message.
    pub(super) fn error(&self, url: &str, doing: &str) -> ProviderError {
        #[derive(serde::Deserialize)]
        struct Errors {
            #[serde(default)]
            errors: Vec<String>,
        }
        let said = serde_json::from_slice::<Errors>(&self.body).map(|body| body.errors.join(", "));
        let said: String = said.unwrap_or_default().chars().take(300).collect();
        let quoted = if said.is_empty() { String::new() } else { format!(" ('{said}')") };
        let status = self.status;
        match status {
            403 => ProviderError::Refused {
                reason: format!("{url}: {doing} was refused{quoted}; check the token and its policy"),
            },
            404 => ProviderError::NoSuchKey,
            // 412: a standby lags behind; 429: too many requests; 472, 473: a standby of
            // replication; 5xx: sealed, or without a leader.
            412 | 429 | 472 | 473 | 500..=599 => {
                ProviderError::Unavailable { reason: format!("{url}: {doing}: status {status}{quoted}") }
            }
            300..=399 => ProviderError::Refused {
                reason: format!(
                    "{url}: it points elsewhere (status {status}), which is not followed with a token; give that address"
                ),
            },
            _ => ProviderError::Refused { reason: format!("{url}: {doing}: status {status}{quoted}") },
        }
    }
}
