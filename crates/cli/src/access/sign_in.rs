//! `strongroom login` and `logout`.

use std::path::{Path, PathBuf};

use clap::Args;
use strongroom_api::Name;
use strongroom_api::access::{Done, NewSession, SignIn};

use super::passwords;
use crate::api::{ControlPlaneArguments, SESSION_ENDED, SavedSession, saved_session_file, show};
use crate::error::CliError;
use crate::home::HomeArguments;
use crate::output::{Output, utc};

/// The arguments of `login`.
#[derive(Debug, Args)]
#[command(
    after_help = "Password and code are asked for. The session ends after 12 hours, or with `strongroom logout`. Its token is in \
session.json of the state directory (--home), readable only by its owner; commands that ask the control plane find it there, and \
act as this user instead of with the first token. It is sent to this control plane alone.

Examples:
  strongroom login ada
  strongroom login ada --token-file ~/ada.session
  strongroom login ada --api https://10.0.0.5:5690 --api-ca api.crt"
)]
pub struct LoginArguments {
    /// Name of the user
    user: Name,

    /// Read the password from file descriptor N, as in --password-fd 3 3<FILE; one trailing line
    /// end is removed [default: ask at the terminal]
    #[arg(long, value_name = "N")]
    password_fd: Option<u32>,

    /// Read the code of the authenticator from file descriptor N [default: ask at the terminal]
    #[arg(long, value_name = "N")]
    code_fd: Option<u32>,

    /// Keep the session in FILE, for --api-token-file FILE of other commands [default: session.json
    /// of the state directory, which they find]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    #[command(flatten)]
    plane: ControlPlaneArguments,
}

/// The arguments of `logout`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  strongroom logout
  strongroom logout --token-file ~/ada.session")]
pub struct LogoutArguments {
    /// End the session in FILE [default: session.json of the state directory]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    #[command(flatten)]
    home: HomeArguments,
}

fn session_file(named: Option<&Path>, home: &HomeArguments) -> Result<PathBuf, CliError> {
    match named {
        Some(file) => Ok(file.to_owned()),
        None => Ok(saved_session_file(&home.path()?)),
    }
}

impl LoginArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let Self { user, password_fd, code_fd, token_file, plane } = self;
        let file = session_file(token_file.as_deref(), &plane.home)?;
        let api = plane.to_sign_in()?;
        let wish = SignIn {
            user: user.clone(),
            password: passwords::once(*password_fd, "--password-fd", &format!("Password of {user}"))?,
            code: passwords::once(*code_fd, "--code-fd", &format!("Code of {user}'s authenticator"))?
                .expose()
                .to_owned(),
        };
        let begun: NewSession = api.post_for("/v1/sessions", &wish).map_err(|error| match error {
            CliError::Api { code, message } if code == "unauthorized" => CliError::Api {
                code,
                message: format!("{user} is not signed in at {}: {message}", api.url()),
            },
            error => error,
        })?;
        let session = begun.session.clone();
        // A file that cannot be read is replaced.
        let former = SavedSession::read(&file).ok().flatten();
        SavedSession::new(begun, api.url(), api.certificate())?.write(&file)?;
        if let Some(former) = former.filter(|former| !former.is_over())
            && let Err(error) = end(&former, &file)
        {
            output.remark(&format!(
                "the session of {} that was in {} goes on: {error}",
                former.user,
                file.display()
            ));
        }
        let text = format!(
            "{user} is signed in at {} until {}; `strongroom logout` ends the session",
            api.url(),
            utc(session.expires_unix_seconds)
        );
        show(output, session, text)
    }
}

impl LogoutArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let file = session_file(self.token_file.as_deref(), &self.home)?;
        let session = SavedSession::read(&file)?.ok_or_else(|| {
            CliError::Usage(format!(
                "nobody is signed in here ({} has no session); `strongroom login USER` signs in",
                file.display()
            ))
        })?;
        if !session.is_over() {
            end(&session, &file)?;
        }
        strongroom_files::remove(&file).map_err(|error| {
            CliError::File(strongroom_files::FileError { action: "remove", path: file.clone(), error })
        })?;
        let SavedSession { user, url, .. } = &session;
        show(output, Done {}, format_args!("the session of {user} at {url} is ended"))
    }
}

/// Ends a session at its control plane, if that still knows it.
fn end(session: &SavedSession, file: &Path) -> Result<(), CliError> {
    let api = session.connect(file)?;
    match api.remove(&format!("/v1/sessions/{}", session.id)) {
        Err(CliError::Api { code, .. }) if code == SESSION_ENDED => Ok(()),
        ended => ended,
    }
}
