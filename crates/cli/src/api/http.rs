//! JSON over HTTPS, with one trusted certificate and a token.

use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use strongroom_api::{AnsweredProblem, ErrorBody, ErrorCode, Problem};
use strongroom_memory::secret::SecretBytes;
use strongroom_serving::{client_certificate_of, client_of, client_with_key, roots_of};
use ureq::Agent;
use ureq::http::{HeaderValue, Request, Response, request};
use zeroize::Zeroizing;

use super::Options;
use super::session::{SESSION_ENDED, login_of};
use crate::error::CliError;

/// The longest response that is read, in bytes; a page of a thousand VMs is below 1 MiB.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// The longest line of a stream that is read, in bytes.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// The timeout of one response. A client that waits for a task gets a response after half a minute.
const ANSWERS_WITHIN: Duration = Duration::from_secs(90);
/// How long, and how often, to retry a control plane that does not listen.
const COMES_BACK_WITHIN: Duration = Duration::from_secs(5);
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// The timeout of a connection attempt.
const CONNECTS_WITHIN: Duration = Duration::from_secs(10);

/// A client of a control plane.
pub struct Http {
    agent: Agent,
    url: String,
    bearer: Bearer,
    ca_file: PathBuf,
    options: Options,
}

/// The trusted certificate.
pub struct Trusted<'file> {
    /// The certificate, as PEM.
    pub pem: &'file [u8],
    /// The file that it was read from, for messages.
    pub file: &'file Path,
}

/// What requests authenticate with.
pub enum Bearer {
    /// Nothing: to sign in.
    None,
    /// A token.
    Token {
        /// The token.
        token: SecretBytes,
        /// The file that it was read from, for messages.
        file: PathBuf,
    },
    /// A key, which takes the place of a token and is shown in TLS.
    Key {
        /// The certificate and the key, as PEM.
        pem: Zeroizing<Vec<u8>>,
        /// The file that they were read from.
        file: PathBuf,
    },
    /// The token of a person's session.
    Session {
        /// The token.
        token: SecretBytes,
        /// Who has signed in.
        user: String,
    },
}

impl Http {
    pub fn new(
        url: String,
        trusted: &Trusted<'_>,
        bearer: Bearer,
        options: Options,
    ) -> Result<Self, CliError> {
        let unusable = || {
            let path = trusted.file.display();
            CliError::Usage(format!(
                "{path} holds no certificate{}",
                options.suggest("; give the control plane's own with --api-ca FILE")
            ))
        };
        let roots = roots_of(trusted.pem).map_err(|_| unusable())?;
        let config = match &bearer {
            Bearer::Key { pem, file } => {
                let unusable = |error| CliError::Usage(format!("{}: {error}", file.display()));
                client_with_key(roots, client_certificate_of(pem).map_err(unusable)?)
            }
            Bearer::None | Bearer::Token { .. } | Bearer::Session { .. } => client_of(roots),
        };
        let agent = config
            .timeout_connect(Some(CONNECTS_WITHIN))
            .timeout_recv_response(Some(ANSWERS_WITHIN))
            .build()
            .new_agent();
        let url = url.trim_end_matches('/').to_owned();
        if !url.starts_with("https://") {
            return Err(CliError::Usage(format!(
                "'{url}' is no address of a control plane: write https://HOST:PORT"
            )));
        }
        Ok(Self { agent, url, bearer, ca_file: trusted.file.to_owned(), options })
    }

    /// The control plane's URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn get<Answer: DeserializeOwned>(&self, path: &str) -> Result<Answer, CliError> {
        self.send("GET", path, None::<&()>, &[])
    }

    pub fn send<Answer: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<&impl Serialize>,
        headers: &[(&str, &str)],
    ) -> Result<Answer, CliError> {
        let body = match body {
            Some(body) => serde_json::to_vec(body).map_err(|error| CliError::Output(error.into()))?,
            None => Vec::new(),
        };
        let request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        let mut request = self.authorized(request)?;
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body).map_err(|error| self.unreachable(&error))?;
        let answer = self.run(&request)?;
        let (status, content) = self.read(answer)?;
        if !(200..300).contains(&status) {
            return Err(self.refused(status, &content));
        }
        serde_json::from_slice(&content).map_err(|error| self.nonsense(&error.to_string()))
    }

    pub fn stream(&self, path: &str, heard: &mut dyn FnMut(&str) -> bool) -> Result<(), CliError> {
        let request = Request::get(format!("{}{path}", self.url)).header("accept", "text/event-stream");
        let request = self.authorized(request)?.body(()).map_err(|error| self.unreachable(&error))?;
        let answer = self.agent.run(request).map_err(|error| self.unanswered(error))?;
        if !answer.status().is_success() {
            let (status, content) = self.read(answer)?;
            return Err(self.refused(status, &content));
        }
        let mut lines = BufReader::new(answer.into_body().into_reader());
        loop {
            let mut line = String::new();
            let read = lines.by_ref().take(LINE_BYTES_MAX).read_line(&mut line);
            match read.map_err(|error| self.unreachable(&error))? {
                0 => return Ok(()),
                _ if !heard(line.trim_end()) => return Ok(()),
                _ => {}
            }
        }
    }

    /// Sends the request. If the connection is refused, it retries for some seconds, because a
    /// control plane that was killed is back after one; without a connection nothing can have been
    /// done.
    fn run(&self, request: &Request<Vec<u8>>) -> Result<Response<ureq::Body>, CliError> {
        let until = Instant::now() + COMES_BACK_WITHIN;
        loop {
            match self.agent.run(request.clone()) {
                Err(ureq::Error::Io(error))
                    if error.kind() == io::ErrorKind::ConnectionRefused && Instant::now() < until =>
                {
                    std::thread::sleep(TRY_AGAIN_AFTER);
                }
                answered => return answered.map_err(|error| self.unanswered(error)),
            }
        }
    }

    fn authorized(&self, request: request::Builder) -> Result<request::Builder, CliError> {
        let token = match &self.bearer {
            Bearer::None | Bearer::Key { .. } => return Ok(request),
            Bearer::Token { token, .. } | Bearer::Session { token, .. } => token,
        };
        let value = Zeroizing::new([b"Bearer ", token.expose()].concat());
        let mut value = HeaderValue::from_bytes(&value)
            .map_err(|_| CliError::Usage("the token holds bytes that no token has".to_owned()))?;
        value.set_sensitive(true);
        Ok(request.header("authorization", value))
    }

    fn read(&self, answer: Response<ureq::Body>) -> Result<(u16, Vec<u8>), CliError> {
        let status = answer.status().as_u16();
        let mut content = Vec::new();
        let mut body = answer.into_body().into_reader().take(ANSWER_BYTES_MAX + 1);
        body.read_to_end(&mut content).map_err(|error| self.unreachable(&error))?;
        if content.len() as u64 > ANSWER_BYTES_MAX {
            return Err(self.nonsense("it is too long"));
        }
        Ok((status, content))
    }

    /// The error for a request without a valid response.
    fn unanswered(&self, error: ureq::Error) -> CliError {
        let error = match error {
            ureq::Error::Io(error) => error,
            error => return self.unreachable(&error),
        };
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match tls {
            Some(rustls::Error::InvalidCertificate(_)) => CliError::Api {
                code: "api_certificate".to_owned(),
                message: format!(
                    "the control plane at {} shows another certificate than that in {}{}; if it should be the same, do not go on: \
                     somebody else may answer there",
                    self.url,
                    self.ca_file.display(),
                    self.options.suggest("; give its own, control/api.crt of its home, with --api-ca FILE")
                ),
            },
            _ => self.unreachable(&error),
        }
    }

    fn unreachable(&self, reason: &impl std::fmt::Display) -> CliError {
        CliError::Api {
            code: "api_unreachable".to_owned(),
            message: format!(
                "the control plane at {} cannot be reached: {reason}; is `strongroom serve` running?",
                self.url
            ),
        }
    }

    fn nonsense(&self, reason: &str) -> CliError {
        let message = format!("the control plane at {} answers what is not understood: {reason}", self.url);
        CliError::Api { code: "api_nonsense".to_owned(), message }
    }

    fn refused(&self, status: u16, content: &[u8]) -> CliError {
        let error = match serde_json::from_slice::<ErrorBody>(content) {
            Ok(ErrorBody { error }) => named(error),
            Err(_) => return self.nonsense(&format!("status {status} without a reason")),
        };
        if error.code != ErrorCode::Unauthorized {
            return CliError::problem(&error);
        }
        match &self.bearer {
            // The control plane says what was wrong with the password.
            Bearer::None => CliError::problem(&error),
            Bearer::Token { file, .. } => CliError::Api {
                code: "unauthorized".to_owned(),
                message: format!(
                    "the control plane at {} does not know the token in {}{}",
                    self.url,
                    file.display(),
                    self.options.suggest(
                        "; give the file of one that it knows, such as control/token of its home, with --api-token-file FILE"
                    )
                ),
            },
            Bearer::Key { file, .. } => CliError::Api {
                code: "unauthorized".to_owned(),
                message: format!(
                    "the control plane at {} knows no token of the key in {}; `strongroom access token create NAME --certificate FILE` makes one",
                    self.url,
                    file.display()
                ),
            },
            Bearer::Session { user, .. } => CliError::Api {
                code: SESSION_ENDED.to_owned(),
                message: format!(
                    "the session of {user} at {} was ended, there or by another password; `{}` begins another",
                    self.url,
                    login_of(user)
                ),
            },
        }
    }
}

/// The problem of an answer. A defect of the server is found in its log by the request's id.
fn named(error: AnsweredProblem) -> Problem {
    match (error.problem.code, error.request) {
        (ErrorCode::Internal, Some(request)) => {
            error.problem.next(format!("the control plane's log has more, under request {request}"))
        }
        (_, _) => error.problem,
    }
}

/// A query as text. Its fields are texts, numbers and booleans.
pub fn query(query: &impl Serialize) -> Result<String, CliError> {
    let fields = serde_json::to_value(query).map_err(|error| CliError::Output(error.into()))?;
    let fields = fields.as_object().cloned().unwrap_or_default();
    let pair = |(name, value): (&String, &serde_json::Value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{name}={}", super::segment(&text))
    };
    Ok(fields.iter().filter(|(_, value)| !value.is_null()).map(pair).collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use strongroom_api::vm::VmListQuery;

    #[test]
    fn a_query_has_what_is_set() {
        let query = VmListQuery { limit: Some(5), name: Some("a b&c".to_owned()), ..VmListQuery::default() };
        let text = super::query(&query).unwrap();
        assert!(
            text.contains("limit=5") && text.contains("name=a%20b%26c") && !text.contains("host"),
            "{text}"
        );
    }
}
