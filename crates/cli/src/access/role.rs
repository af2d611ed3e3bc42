//! `strongroom role`.

use std::fmt;
use std::str::FromStr;

use clap::{Args, Subcommand};
use strongroom_api::access::{CreateGrant, CreateRole, Done, Grant, Role};
use strongroom_api::identity::ProviderGroup;
use strongroom_api::{ErrorCode, Name, Page, Privilege, PrivilegeSet, Problem, Reference};
use strongroom_types::NameError;

use super::by_name;
use super::scope::{self, ScopeArguments};
use crate::api::{ApiArguments, segment, show, table};
use crate::error::CliError;
use crate::output::{Output, Table};

/// The commands for roles.
#[derive(Debug, Subcommand)]
pub enum RoleCommand {
    /// List roles
    List(ListArguments),
    /// Show what a role permits
    #[command(after_help = "Example:\n  strongroom role show operator")]
    Show(RoleArguments),
    /// Create a role with privileges that you have
    Create(CreateArguments),
    /// Delete a role that nobody has
    #[command(after_help = "Example:\n  strongroom role delete starter")]
    Delete(RoleArguments),
    /// Give a role to a user, or to a group of an identity provider
    #[command(
        after_help = "You give only what you have yourself, at the same place. A group is PROVIDER:GROUP; its users sign in with \
'strongroom login --provider'.

Examples:
  strongroom role grant corp:ops operator
  strongroom role grant ada operator
  strongroom role grant ada no-cryptography-administrator --folder tenant1"
    )]
    Grant(GrantArguments),
    /// Take a role from a user or a group
    #[command(
        after_help = "The place is that of the grant. Tasks that have not begun at a host are cancelled.

Examples:
  strongroom role revoke ada operator
  strongroom role revoke corp:ops operator
  strongroom role revoke ada no-cryptography-administrator --folder tenant1"
    )]
    Revoke(GrantArguments),
}

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom role list")]
pub struct ListArguments {
    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of commands on a role.
#[derive(Debug, Args)]
pub struct RoleArguments {
    /// Name of the role
    role: Name,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `create`.
#[derive(Debug, Args)]
#[command(
    after_help = "A role does not change: another set of privileges is another role. `strongroom role show administrator` lists \
all privileges.

Example:
  strongroom role create starter --privilege view --privilege power"
)]
pub struct CreateArguments {
    /// Name of the role
    name: Name,

    /// Privilege of the role; repeatable
    #[arg(long = "privilege", value_name = "PRIVILEGE", required = true)]
    privileges: Vec<Privilege>,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `grant` and `revoke`.
#[derive(Debug, Args)]
pub struct GrantArguments {
    /// Name of the user, or PROVIDER:GROUP
    #[arg(value_name = "USER")]
    grantee: Grantee,

    /// Name of the role
    role: Name,

    #[command(flatten)]
    scope: ScopeArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// To whom a role is given. Names of users have no colon.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Grantee {
    User(Name),
    Group(ProviderGroup),
}

impl FromStr for Grantee {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None => text.parse().map(Self::User).map_err(|error: NameError| error.to_string()),
            Some((provider, group)) => {
                let provider = provider.parse().map_err(|error: NameError| error.to_string())?;
                Ok(Self::Group(ProviderGroup { provider, group: group.parse()? }))
            }
        }
    }
}

impl fmt::Display for Grantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(f, "user {user}"),
            Self::Group(ProviderGroup { provider, group }) => write!(f, "group {group} of {provider}"),
        }
    }
}

impl Grantee {
    fn has(&self, grant: &Grant) -> bool {
        match self {
            Self::User(user) => grant.user.as_ref() == Some(user),
            Self::Group(group) => grant.group.as_ref() == Some(group),
        }
    }
}

impl RoleCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::List(ListArguments { api }) => {
                let head = ["NAME", "OF", "PRIVILEGES"];
                table(output, api.connect()?.list("/v1/roles")?, head, "there are no roles", |role: &Role| {
                    let all = role.privileges == PrivilegeSet::all();
                    [
                        role.name.to_string(),
                        if role.built_in { "every site" } else { "this site" }.to_owned(),
                        if all { "all".to_owned() } else { role.privileges.to_string() },
                    ]
                })
            }
            Self::Show(RoleArguments { role, api }) => {
                let role = by_name(&api.connect()?, "role", role, |found: &Role| &found.name)?;
                let row =
                    |privilege: Privilege| [privilege.as_str().to_owned(), privilege.permits().to_owned()];
                let rows = role.privileges.iter().map(row).collect();
                let text = Table { head: ["PRIVILEGE", "PERMITS TO"], rows }.to_string();
                show(output, role, text)
            }
            Self::Create(CreateArguments { name, privileges, api }) => {
                let privileges = privileges.iter().copied().collect();
                let wish = CreateRole { name: name.clone(), privileges };
                let role: Role = api.connect()?.post_for("/v1/roles", &wish)?;
                let text = format!("role {name} is made: {}", role.privileges);
                show(output, role, text)
            }
            Self::Delete(RoleArguments { role, api }) => {
                api.connect()?.remove(&format!("/v1/roles/{role}"))?;
                show(output, Done {}, format_args!("role {role} is deleted"))
            }
            Self::Grant(GrantArguments { grantee, role, scope, api }) => {
                let (user, group) = match grantee {
                    Grantee::User(user) => (Some(Reference::from(user.clone())), None),
                    Grantee::Group(group) => (None, Some(group.clone())),
                };
                let wish = CreateGrant { user, group, role: role.clone(), scope: scope.scope() };
                let grant: Grant = api.connect()?.post_for("/v1/grants", &wish)?;
                let text = format!("{grantee} has role {role} for {}", scope::display(&grant.scope));
                show(output, grant, text)
            }
            Self::Revoke(arguments) => arguments.revoke(output),
        }
    }
}

impl GrantArguments {
    fn revoke(&self, output: &Output) -> Result<(), CliError> {
        let Self { grantee, role, scope, api } = self;
        let (api, scope) = (api.connect()?, scope.scope());
        let place = scope::display(&scope);
        let all: Page<Grant> = api.list("/v1/grants")?;
        let is_meant = |grant: &Grant| grantee.has(grant) && grant.role == *role && grant.scope == scope;
        let given: Vec<Grant> = all.items.into_iter().filter(is_meant).collect();
        if given.is_empty() {
            let message = format!("{grantee} does not have role {role} for {place}");
            let next = "`strongroom user show` and `strongroom access review` show who has which";
            return Err(CliError::problem(&Problem::new(ErrorCode::NotFound, message).next(next)));
        }
        // The same role may have been given twice.
        for grant in &given {
            api.remove(&format!("/v1/grants/{}", segment(&grant.id.to_string())))?;
        }
        show(output, given, format_args!("{grantee} no longer has role {role} for {place}"))
    }
}
