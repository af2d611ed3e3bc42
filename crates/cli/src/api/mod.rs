//! The client of the control plane: finds it, converts its responses and errors, and waits for its
//! tasks.
//!
//! ```text
//! <home>/control/api.json   its address
//! <home>/control/api.crt    its certificate, the only one that is trusted
//! <home>/control/token      the first token, readable only by its owner
//! <home>/session.json       the session of a person who has signed in, used before the first token
//! ```

mod answer;
mod follow;
mod http;
mod session;

use std::path::{Path, PathBuf};

use clap::Args;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use strongroom_api::access::Done;
use strongroom_api::limits::PAGE_MAX;
use strongroom_api::task::Task;
use strongroom_api::{IDEMPOTENCY_KEY_HEADER, ListQuery, Page, Reference};
use strongroom_files::FileError;
use strongroom_jobs::state_file;
use strongroom_memory::secret::SecretBytes;
use uuid::Uuid;
use zeroize::Zeroizing;

pub use self::answer::{show, table, time_ms, word};
pub use self::follow::{Begun, WaitArguments, follow, follow_with_images};
pub use self::http::Bearer;
use self::http::{Http, Trusted};
pub use self::session::{SESSION_ENDED, SavedSession, saved_session_file};
use crate::error::CliError;
use crate::home::HomeArguments;

/// The control plane's directory in the home.
pub const CONTROL_DIRECTORY: &str = "control";
/// The file with the address that it listens on.
const ADDRESS_FILE: &str = "api.json";
/// Its certificate.
pub const CERTIFICATE_FILE: &str = "api.crt";
/// The first token.
const TOKEN_FILE: &str = "token";

/// The format of the file with the address.
const ADDRESS_FORMAT: u32 = 1;

/// The longest file of these that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// How a file with a certificate and its key begins.
const PEM_BEGINS: &[u8] = b"-----BEGIN ";

/// The environment variable with the control plane's URL.
const URL_VARIABLE: &str = "STRONGROOM_API";

/// Which control plane, and its certificate.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Control plane")]
pub struct ControlPlaneArguments {
    /// URL of the control plane, https://HOST:PORT [default: STRONGROOM_API, that of the session,
    /// or the local `strongroom serve`]
    #[arg(long, value_name = "URL")]
    api: Option<String>,

    /// Certificate of the control plane, PEM [default: that of the session, or of the local control
    /// plane]
    #[arg(long, value_name = "FILE")]
    api_ca: Option<PathBuf>,

    #[command(flatten)]
    pub home: HomeArguments,
}

/// How to reach the control plane.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Control plane")]
pub struct ApiArguments {
    #[command(flatten)]
    plane: ControlPlaneArguments,

    /// File with the access token, with a certificate and its key as PEM, or with a session of
    /// `strongroom login` [default: the session, or the first token of the local control plane]
    #[arg(long, value_name = "FILE")]
    api_token_file: Option<PathBuf>,

    /// Which options the command has, for what it suggests.
    #[arg(skip)]
    options: Options,
}

/// The options of a command that asks a control plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Options {
    /// Those of [`ApiArguments`].
    #[default]
    All,
    /// None: it asks the one of its home.
    None,
}

impl Options {
    /// `text`, which suggests an option, if the command has it.
    pub fn suggest(self, text: &'static str) -> &'static str {
        match self {
            Self::All => text,
            Self::None => "",
        }
    }
}

/// The content of a control plane's address file.
#[derive(Serialize, Deserialize)]
struct Listens {
    format: u32,
    url: String,
}

/// Writes the control plane's address to its home.
pub fn write_address(control_home: &Path, url: &str) -> Result<(), CliError> {
    let listens = Listens { format: ADDRESS_FORMAT, url: url.to_owned() };
    Ok(state_file::replace(&control_home.join(ADDRESS_FILE), &listens)?)
}

/// A control plane.
pub struct Api {
    http: Http,
    certificate: Zeroizing<Vec<u8>>,
}

impl ControlPlaneArguments {
    /// The URL that an option or the environment names.
    fn named_url(&self) -> Option<String> {
        self.api.clone().or_else(|| std::env::var(URL_VARIABLE).ok())
    }

    /// Reads address and certificate, to sign in. It sends no request.
    pub fn to_sign_in(&self) -> Result<Api, CliError> {
        self.with_bearer(Options::All, || Ok(Bearer::None))
    }

    fn with_bearer(
        &self,
        options: Options,
        bearer: impl FnOnce() -> Result<Bearer, CliError>,
    ) -> Result<Api, CliError> {
        let home = self.home.path()?.join(CONTROL_DIRECTORY);
        let url = match self.named_url() {
            Some(url) => url,
            None => address_for(&home, options)?,
        };
        let file = self.api_ca.clone().unwrap_or_else(|| home.join(CERTIFICATE_FILE));
        let pem = read(&file)?;
        Api::new(url, pem, &file, bearer()?, options)
    }

    /// The control plane of a session, which gets that session's token and no other's.
    fn of_session(&self, session: &SavedSession, file: &Path) -> Result<Api, CliError> {
        session.expect_current()?;
        if let Some(named) = self.named_url() {
            session.expect_url(&named)?;
        }
        match &self.api_ca {
            Some(ca) => Api::new(session.url.clone(), read(ca)?, ca, session.bearer()?, Options::All),
            None => session.connect(file),
        }
    }
}

impl ApiArguments {
    /// The control plane of this machine, with this home and its first token.
    pub fn of_home(home: &HomeArguments) -> Self {
        let plane = ControlPlaneArguments { home: home.clone(), ..ControlPlaneArguments::default() };
        Self { plane, options: Options::None, ..Self::default() }
    }

    /// This command's home.
    pub fn home(&self) -> Result<PathBuf, CliError> {
        self.plane.home.path()
    }

    /// Reads the address, certificate and token. It sends no request.
    pub fn connect(&self) -> Result<Api, CliError> {
        let home = self.plane.home.path()?;
        let file = match (&self.api_token_file, self.options) {
            (Some(file), _) => file.clone(),
            (None, Options::All) => {
                let saved = saved_session_file(&home);
                // A person who has signed in acts as that user, and not with the first token.
                if saved.exists() { saved } else { home.join(CONTROL_DIRECTORY).join(TOKEN_FILE) }
            }
            (None, Options::None) => home.join(CONTROL_DIRECTORY).join(TOKEN_FILE),
        };
        match SavedSession::read(&file)? {
            Some(session) => self.plane.of_session(&session, &file),
            None => self.plane.with_bearer(self.options, || {
                if self.api_token_file.is_none() && !file.exists() {
                    return Err(CliError::Usage(format!(
                        "there is no token here ({} is not there){}",
                        file.display(),
                        self.options.suggest(
                            "; `strongroom login USER` signs in, or give the file of a token with --api-token-file FILE"
                        )
                    )));
                }
                let content = read(&file)?;
                if content.trim_ascii().starts_with(PEM_BEGINS) {
                    return Ok(Bearer::Key { pem: content, file });
                }
                let token = token_of(&content, &file, self.options)?;
                Ok(Bearer::Token { token, file })
            }),
        }
    }
}

/// The address of this home's control plane.
pub fn address(home: &Path) -> Result<String, CliError> {
    address_for(home, Options::None)
}

fn address_for(home: &Path, options: Options) -> Result<String, CliError> {
    let path = home.join(ADDRESS_FILE);
    if !path.exists() {
        return Err(CliError::Usage(format!(
            "no control plane runs here ({} is not there): start one with `strongroom serve`{}",
            path.display(),
            options.suggest(", or name one with --api URL, --api-ca FILE and --api-token-file FILE")
        )));
    }
    let listens: Listens = state_file::read(&path, ADDRESS_FORMAT)
        .map_err(|error| CliError::File(FileError { action: "read", path, error }))?;
    Ok(listens.url)
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, CliError> {
    let failed = |error| CliError::File(FileError { action: "read", path: path.to_owned(), error });
    strongroom_files::read(path, FILE_BYTES_MAX).map(Zeroizing::new).map_err(failed)
}

fn token_of(content: &[u8], path: &Path, options: Options) -> Result<SecretBytes, CliError> {
    let mut token = Zeroizing::new(content.trim_ascii().to_vec());
    if token.is_empty() {
        return Err(CliError::Usage(format!(
            "{} holds no token{}",
            path.display(),
            options.suggest("; give the file of one with --api-token-file FILE")
        )));
    }
    Ok(SecretBytes::from_slice_and_wipe(&mut token)?)
}

impl SavedSession {
    /// Its control plane, by the certificate that was trusted at the sign-in. `file` has the
    /// session. It sends no request.
    pub fn connect(&self, file: &Path) -> Result<Api, CliError> {
        let pem = Zeroizing::new(self.certificate.as_bytes().to_vec());
        Api::new(self.url.clone(), pem, file, self.bearer()?, Options::All)
    }
}

impl Api {
    fn new(
        url: String,
        certificate: Zeroizing<Vec<u8>>,
        certificate_file: &Path,
        bearer: Bearer,
        options: Options,
    ) -> Result<Self, CliError> {
        let trusted = Trusted { pem: &certificate, file: certificate_file };
        let http = Http::new(url, &trusted, bearer, options)?;
        Ok(Self { http, certificate })
    }

    /// Gets a resource.
    pub fn get<Answer: DeserializeOwned>(&self, path: &str) -> Result<Answer, CliError> {
        self.http.get(path)
    }

    /// Gets a resource with a query.
    pub fn query<Answer: DeserializeOwned>(
        &self,
        path: &str,
        query: &impl Serialize,
    ) -> Result<Answer, CliError> {
        let text = http::query(query)?;
        self.http.get(&if text.is_empty() { path.to_owned() } else { format!("{path}?{text}") })
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        self.http.url()
    }

    /// The certificate that is trusted, as PEM.
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// Gets all pages of a list.
    pub fn list<Item: DeserializeOwned>(&self, path: &str) -> Result<Page<Item>, CliError> {
        let mut query = ListQuery { limit: Some(PAGE_MAX), cursor: None };
        let mut all: Page<Item> = self.query(path, &query)?;
        while let Some(cursor) = all.next.take() {
            query.cursor = Some(cursor);
            let page: Page<Item> = self.query(path, &query)?;
            all.items.extend(page.items);
            all.next = page.next;
        }
        Ok(all)
    }

    /// Removes something at once, without a task.
    pub fn remove(&self, path: &str) -> Result<(), CliError> {
        self.http.send("DELETE", path, None::<&()>, &[]).map(|Done {}| ())
    }

    /// As [`remove`](Self::remove), with an answer.
    pub fn remove_for<Answer: DeserializeOwned>(&self, path: &str) -> Result<Answer, CliError> {
        self.http.send("DELETE", path, None::<&()>, &[])
    }

    /// Starts a task.
    pub fn post(&self, path: &str, body: &impl Serialize) -> Result<Task, CliError> {
        self.begin("POST", path, Some(body), &[])
    }

    /// Posts a request whose response is not a task.
    pub fn post_for<Answer: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Answer, CliError> {
        self.http.send("POST", path, Some(body), &[])
    }

    /// As [`post_for`](Self::post_for), for a request that is carried out once however often it is
    /// sent.
    pub fn post_once_for<Answer: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Answer, CliError> {
        let key = Uuid::new_v4().to_string();
        self.http.send("POST", path, Some(body), &[(IDEMPOTENCY_KEY_HEADER, &key)])
    }

    /// Changes a resource at once, without a task.
    pub fn patch_for<Answer: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Answer, CliError> {
        self.http.send("PATCH", path, Some(body), &[])
    }

    /// Starts a task that changes a resource.
    pub fn patch(&self, path: &str, body: &impl Serialize) -> Result<Task, CliError> {
        self.begin("PATCH", path, Some(body), &[])
    }

    /// Starts a task that changes a resource, unless it was changed since this version was read.
    pub fn patch_version(&self, path: &str, body: &impl Serialize, version: u64) -> Result<Task, CliError> {
        self.begin("PATCH", path, Some(body), &[("if-match", &version.to_string())])
    }

    /// Starts a task that removes or ends a resource.
    pub fn delete(&self, path: &str) -> Result<Task, CliError> {
        self.begin("DELETE", path, None::<&()>, &[])
    }

    /// As [`delete`](Self::delete), with options.
    pub fn delete_with(&self, path: &str, options: &impl Serialize) -> Result<Task, CliError> {
        self.begin("DELETE", path, Some(options), &[])
    }

    /// Sends a request with a key, so that it is carried out once however often it is sent.
    fn begin(
        &self,
        method: &str,
        path: &str,
        body: Option<&impl Serialize>,
        headers: &[(&str, &str)],
    ) -> Result<Task, CliError> {
        let key = Uuid::new_v4().to_string();
        let headers = [headers, &[(IDEMPOTENCY_KEY_HEADER, &key)]].concat();
        self.http.send(method, path, body, &headers)
    }

    /// Calls `heard` with each line of a streamed response, until it returns `false`.
    pub fn stream(&self, path: &str, heard: &mut dyn FnMut(&str) -> bool) -> Result<(), CliError> {
        self.http.stream(path, heard)
    }
}

/// Encodes a name or id as a path segment.
pub fn segment(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encode = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encode).collect()
}

/// Parses the name or id of a disk, a VM or a snapshot.
pub fn parse_reference(text: &str) -> Result<Reference, String> {
    Reference::try_from(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_segment() {
        assert_eq!(segment("web-1.example_org"), "web-1.example_org");
        assert_eq!(segment("../x?y#z%/ä"), "..%2Fx%3Fy%23z%25%2F%C3%A4");
    }
}
