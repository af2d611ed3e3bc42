//! `strongroom login` and `logout`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use strongroom_api::Name;
use strongroom_api::access::{Done, NewSession, SignIn};
use strongroom_api::browser::SignedOut;
use strongroom_api::emergency::{EmergencyReason, EmergencySecret, EmergencySignIn};
use strongroom_api::identity::{BeginSignIn, BegunSignIn, FinishSignIn, ProviderAnswer};
use strongroom_types::unix_milliseconds_now;

use super::browser::{Brought, Callback};
use super::passwords;
use crate::api::{
    Api, ControlPlaneArguments, SESSION_ENDED, SavedSession, saved_session_file, segment, show,
};
use crate::error::CliError;
use crate::home::HomeArguments;
use crate::output::{Output, printable, utc};

/// The arguments of `login`.
#[derive(Debug, Args)]
#[command(
    after_help = "Password and code are asked for. The session ends after 12 hours, or with `strongroom logout`. Its token is in \
session.json of the state directory (--home), readable only by its owner; commands that ask the control plane find it there, and \
act as this user instead of with the first token. It is sent to this control plane alone.

With --provider, a browser on this machine goes to the provider's page, whose address is printed. On a machine without one, give \
a port and forward it from yours: ssh -L 8765:127.0.0.1:8765.

Examples:
  strongroom login ada
  strongroom login ada --token-file ~/ada.session
  strongroom login ada --api https://10.0.0.5:5690 --api-ca api.crt
  strongroom login --provider corp
  strongroom login --provider corp --port 8765
  strongroom login --emergency --reason 'the identity provider is away, INC-4711'"
)]
pub struct LoginArguments {
    #[command(flatten)]
    way: WayArguments,

    /// Read the password from file descriptor N, as in --password-fd 3 3<FILE; one trailing line
    /// end is removed [default: ask at the terminal]
    #[arg(long, value_name = "N", requires = "user")]
    password_fd: Option<u32>,

    /// Read the code of the authenticator from file descriptor N [default: ask at the terminal]
    #[arg(long, value_name = "N", requires = "user")]
    code_fd: Option<u32>,

    /// Wait for the browser on this port [default: one that is free]
    #[arg(long, value_name = "PORT", requires = "provider", default_value_t = 0, hide_default_value = true)]
    port: u16,

    /// Reason for the emergency, which everyone is told whom alarms reach
    #[arg(long, value_name = "TEXT", requires = "emergency")]
    reason: Option<EmergencyReason>,

    /// Read the emergency credential from file descriptor N [default: ask at the terminal]
    #[arg(long, value_name = "N", requires = "emergency")]
    emergency_fd: Option<u32>,

    /// Keep the session in FILE, for --api-token-file FILE of other commands [default: session.json
    /// of the state directory, which they find]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    #[command(flatten)]
    plane: ControlPlaneArguments,
}

/// How somebody signs in.
#[derive(Debug, Args)]
#[group(id = "way", required = true, multiple = false)]
struct WayArguments {
    /// Name of the user
    user: Option<Name>,

    /// Sign in by this identity provider
    #[arg(long, value_name = "NAME")]
    provider: Option<Name>,

    /// Sign in by an emergency credential, which works once
    #[arg(long, requires = "reason")]
    emergency: bool,
}

/// The arguments of `logout`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  strongroom logout
  strongroom logout --token-file ~/ada.session
  strongroom logout --everywhere")]
pub struct LogoutArguments {
    /// End the session in FILE [default: session.json of the state directory]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// End all sessions of this user, of browsers and other machines too
    #[arg(long)]
    everywhere: bool,

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
        let file = session_file(self.token_file.as_deref(), &self.plane.home)?;
        let api = self.plane.to_sign_in()?;
        let WayArguments { user, provider, emergency: _ } = &self.way;
        let (begun, whom) = match (user, provider) {
            (Some(user), _) => (self.by_password(&api, user), user.to_string()),
            (None, Some(provider)) => (self.by_provider(&api, provider), format!("a user of {provider}")),
            (None, None) => (self.by_emergency(&api), "the emergency credential".to_owned()),
        };
        let begun = begun.map_err(|error| match error {
            CliError::Api { code, message } if code == "unauthorized" => CliError::Api {
                code,
                message: format!("{whom} is not signed in at {}: {message}", api.url()),
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
            "{} is signed in at {} until {}; `strongroom logout` ends the session",
            session.user,
            api.url(),
            utc(session.expires_unix_seconds)
        );
        show(output, session, text)
    }

    fn by_password(&self, api: &Api, user: &Name) -> Result<NewSession, CliError> {
        let wish = SignIn {
            user: user.clone(),
            password: passwords::once(self.password_fd, "--password-fd", &format!("Password of {user}"))?,
            code: passwords::once(self.code_fd, "--code-fd", &format!("Code of {user}'s authenticator"))?
                .expose()
                .to_owned(),
        };
        api.post_for("/v1/sessions", &wish)
    }

    fn by_provider(&self, api: &Api, provider: &Name) -> Result<NewSession, CliError> {
        let callback = Callback::listen(provider, self.port)?;
        let redirect = callback.redirect().parse().map_err(CliError::Usage)?;
        let path = format!("/v1/identity-providers/{}/sign-ins", segment(provider.as_str()));
        let begun: BegunSignIn = api.post_for(&path, &BeginSignIn { redirect })?;
        // Also if answers are JSON: without it, nothing goes on. If stderr is closed, nobody reads.
        let _ = writeln!(
            io::stderr(),
            "Open this page in a browser on this machine:\n  {}",
            printable(&begun.authorization_url)
        );
        let now_unix_seconds = unix_milliseconds_now() / 1000;
        let within = Duration::from_secs(begun.expires_unix_seconds.saturating_sub(now_unix_seconds));
        let Brought { code, issuer } = callback.wait(&begun.state, within)?;
        let answer = |text: String| ProviderAnswer::try_from(text).map_err(CliError::Usage);
        let wish = FinishSignIn {
            flow: answer(begun.flow.expose().to_owned())?,
            state: answer(begun.state)?,
            code: answer(code)?,
            iss: issuer.map(answer).transpose()?,
        };
        api.post_for("/v1/provider-sessions", &wish)
    }

    fn by_emergency(&self, api: &Api) -> Result<NewSession, CliError> {
        let missing = || CliError::Usage("an emergency sign-in has a reason: --reason TEXT".to_owned());
        let reason = self.reason.clone().ok_or_else(missing)?;
        let secret = passwords::once(self.emergency_fd, "--emergency-fd", "Emergency credential")?;
        let secret = EmergencySecret::try_from(secret.expose().to_owned()).map_err(CliError::Usage)?;
        api.post_for("/v1/emergency-sessions", &EmergencySignIn { secret, reason })
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
        if self.everywhere {
            session.connect(&file)?.remove_for::<SignedOut>("/v1/page-sessions")?;
        } else if !session.is_over() {
            end(&session, &file)?;
        }
        strongroom_files::remove(&file).map_err(|error| {
            CliError::File(strongroom_files::FileError { action: "remove", path: file.clone(), error })
        })?;
        let SavedSession { user, url, .. } = &session;
        match self.everywhere {
            true => show(output, Done {}, format_args!("all sessions of {user} at {url} are ended")),
            false => show(output, Done {}, format_args!("the session of {user} at {url} is ended")),
        }
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
