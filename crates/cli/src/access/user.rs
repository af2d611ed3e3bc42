//! `strongroom user`.

use std::fmt;

use clap::{Args, Subcommand};
use serde::Serialize;
use strongroom_api::Name;
use strongroom_api::access::{
    ChangePassword, CreateUser, Done, Grant, Me, NewUser, Password, RenewSecondFactor, ShownOnce, User,
};

use super::passwords::{NewPasswordArguments, PresentPasswordArguments};
use super::{by_name, scope, time_or_none};
use crate::api::{Api, ApiArguments, segment, show, table};
use crate::error::CliError;
use crate::output::{Output, Table, utc};
use crate::vm::is_meant;

/// How codes of the second factor are made, which is what authenticators assume.
const CODES: &str = "algorithm=SHA1&digits=6&period=30";

/// The commands for users.
#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// Create a user, who has no role yet; print the secret of the second factor, once
    Create(CreateArguments),
    /// List users with their roles
    List(ListArguments),
    /// Show a user with its roles, or who you are
    Show(ShowArguments),
    /// Delete a user with its roles, sessions and tokens
    Delete(DeleteArguments),
    /// Change the password of a user, and end its sessions
    Password(PasswordArguments),
    /// Give a user another second factor, end its sessions, and print the new secret, once
    Totp(TotpArguments),
}

/// The arguments of `create`.
#[derive(Debug, Args)]
#[command(
    after_help = "The password is asked for twice. The secret that is printed belongs in the user's authenticator (RFC 6238); \
it is not shown again, and `strongroom user totp` makes another one.

Examples:
  strongroom user create ada
  strongroom user create ada --password-fd 3 3<ada.password"
)]
pub struct CreateArguments {
    /// Name of the user; no token has the same
    name: Name,

    #[command(flatten)]
    password: NewPasswordArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom user list")]
pub struct ListArguments {
    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `show`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  strongroom user show\n  strongroom user show ada")]
pub struct ShowArguments {
    /// Name of the user [default: the one whose session or token the command has]
    user: Option<Name>,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `delete`.
#[derive(Debug, Args)]
#[command(after_help = "What the user has made stays: VMs, schedules, users and roles.

Examples:
  strongroom user delete ada
  strongroom user delete ada --yes")]
pub struct DeleteArguments {
    /// Name of the user
    user: Name,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `password`.
#[derive(Debug, Args)]
#[command(
    after_help = "A user gives its present password first. To set that of another user, you need every privilege that this user has.

Examples:
  strongroom user password ada
  strongroom user password ada --password-fd 3 3<ada.password"
)]
pub struct PasswordArguments {
    /// Name of the user
    user: Name,

    #[command(flatten)]
    password: NewPasswordArguments,

    #[command(flatten)]
    present: PresentPasswordArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `totp`.
#[derive(Debug, Args)]
#[command(after_help = "A user gives its present password first. Codes of the former secret count no more.

Example:
  strongroom user totp ada")]
pub struct TotpArguments {
    /// Name of the user
    user: Name,

    #[command(flatten)]
    present: PresentPasswordArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// A second factor that was just made.
#[derive(Serialize)]
struct Made {
    user: User,
    totp_secret: ShownOnce,
    totp_uri: ShownOnce,
    #[serde(skip)]
    said: &'static str,
    #[serde(skip)]
    next: String,
}

impl Made {
    fn new(made: NewUser, api: &Api, said: &'static str, next: String) -> Self {
        let NewUser { user, totp_secret } = made;
        let totp_uri = totp_uri(&user.name, api.url(), &totp_secret);
        Self { user, totp_secret, totp_uri, said, next }
    }
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, totp_secret, totp_uri, said, next } = self;
        writeln!(f, "user {} {said}. The secret of its second factor, shown only now:", user.name)?;
        writeln!(f, "  secret  {}", totp_secret.expose())?;
        writeln!(f, "  URI     {}", totp_uri.expose())?;
        write!(f, "{next}")
    }
}

/// The secret as authenticators take it, in a QR code or as a link.
fn totp_uri(user: &Name, url: &str, secret: &ShownOnce) -> ShownOnce {
    let site = segment(url.trim_start_matches("https://"));
    let secret = secret.expose();
    format!("otpauth://totp/Strongroom:{user}%40{site}?secret={secret}&issuer=Strongroom&{CODES}").into()
}

impl UserCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::Create(arguments) => arguments.run(output),
            Self::List(ListArguments { api }) => {
                let head = ["NAME", "ROLES", "LAST SIGN-IN", "CREATED"];
                table(output, api.connect()?.list("/v1/users")?, head, "there are no users", |user: &User| {
                    [
                        user.name.to_string(),
                        user.grants.iter().map(role_at).collect::<Vec<_>>().join(", "),
                        time_or_none(user.last_sign_in_unix_seconds),
                        utc(user.created_unix_seconds),
                    ]
                })
            }
            Self::Show(arguments) => arguments.run(output),
            Self::Delete(DeleteArguments { user, yes, api }) => {
                let api = api.connect()?;
                if !yes {
                    is_meant(&format!("Delete user {user} with its roles, sessions and tokens?"))?;
                }
                api.remove(&format!("/v1/users/{user}"))?;
                show(output, Done {}, format_args!("user {user} is deleted"))
            }
            Self::Password(PasswordArguments { user, password, present, api }) => {
                let api = api.connect()?;
                let current = present_password(&api, user, present)?;
                let wish = ChangePassword { current, password: password.get(user)? };
                let done: Done = api.post_for(&format!("/v1/users/{user}/password"), &wish)?;
                let said = "has another password, and its sessions have ended";
                show(output, done, format_args!("user {user} {said}"))
            }
            Self::Totp(TotpArguments { user, present, api }) => {
                let api = api.connect()?;
                let current = present_password(&api, user, present)?;
                let path = format!("/v1/users/{user}/second-factor");
                let made = api.post_for(&path, &RenewSecondFactor { current })?;
                let next = format!("Its sessions have ended. Next: strongroom login {user}");
                output.answer(&Made::new(made, &api, "has another second factor", next))
            }
        }
    }
}

/// The present password of a user who changes its own account; `None` if somebody else does.
fn present_password(
    api: &Api,
    user: &Name,
    present: &PresentPasswordArguments,
) -> Result<Option<Password>, CliError> {
    // A user and a token never have the same name.
    let is_own = api.get::<Me>("/v1/me")?.name == user.as_str();
    is_own.then(|| present.get(user)).transpose()
}

fn role_at(grant: &Grant) -> String {
    format!("{} ({})", grant.role, scope::display(&grant.scope))
}

impl CreateArguments {
    fn run(&self, output: &Output) -> Result<(), CliError> {
        let Self { name, password, api } = self;
        let api = api.connect()?;
        let wish = CreateUser { name: name.clone(), password: password.get(name)? };
        let made = api.post_for("/v1/users", &wish)?;
        let next = format!("It has no role yet. Next: strongroom role grant {name} ROLE");
        output.answer(&Made::new(made, &api, "is made", next))
    }
}

impl ShowArguments {
    fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let Some(name) = &self.user else {
            let me: Me = api.get("/v1/me")?;
            let text = format!(
                "{} at {}\n{}\n\nfor the whole site: {}",
                me.name,
                api.url(),
                roles(&me.grants),
                if me.site.is_empty() { "nothing".to_owned() } else { me.site.to_string() }
            );
            return show(output, me, text);
        };
        let user = by_name(&api, "user", name, |user: &User| &user.name)?;
        let text = format!(
            "{name}\n  id            {}\n  created       {}\n  last sign-in  {}\n{}",
            user.id,
            utc(user.created_unix_seconds),
            time_or_none(user.last_sign_in_unix_seconds),
            roles(&user.grants)
        );
        show(output, user, text)
    }
}

fn roles(grants: &[Grant]) -> String {
    if grants.is_empty() {
        return "it has no role of its own".to_owned();
    }
    let row = |grant: &Grant| {
        [
            grant.role.to_string(),
            scope::display(&grant.scope),
            grant.by.clone(),
            utc(grant.created_unix_seconds),
        ]
    };
    Table { head: ["ROLE", "WHERE", "GIVEN BY", "ON"], rows: grants.iter().map(row).collect() }.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authenticator_can_read_the_uri() {
        let uri =
            totp_uri(&"ada".parse().unwrap(), "https://[::1]:5690", &"JBSWY3DPEHPK3PXP".to_owned().into());
        assert_eq!(
            uri.expose(),
            "otpauth://totp/Strongroom:ada%40%5B%3A%3A1%5D%3A5690?secret=JBSWY3DPEHPK3PXP&issuer=Strongroom&algorithm=SHA1&digits=6&period=30"
        );
    }
}
