//! `strongroom access review` and `explain`: who may do what.

use std::fmt;

use clap::Args;
use serde::Serialize;
use strongroom_api::access::{Explain, Explanation, Grant, Review, Session, Token, User};
use strongroom_api::identity::IdentityProvider;
use strongroom_api::{Name, Reference};
use strongroom_types::counted;

use super::{owner, scope, time_or_none};
use crate::api::{ApiArguments, parse_reference, show};
use crate::error::CliError;
use crate::output::{Output, Table, utc};

/// The arguments of `review`.
#[derive(Debug, Args)]
#[command(
    after_help = "Privileges of roles: `strongroom role show`. A token has at no time more rights than its user.

Examples:
  strongroom access review
  strongroom access review --json | jq -r '.users[] | select(.last_sign_in_unix_seconds == null) | .name'"
)]
pub struct ReviewArguments {
    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `explain`.
#[derive(Debug, Args)]
#[command(after_help = "Fields of a request can take more than its operation: docs/ROLES.md lists both.

Examples:
  strongroom access explain ada vm_start --vm web1
  strongroom access explain ada user_create")]
pub struct ExplainArguments {
    /// Name of the user
    user: Name,

    /// Operation of the API, as in docs/API.md: vm_start, vm_delete
    operation: Name,

    /// For this VM [default: for the whole site]
    #[arg(long, value_name = "VM", value_parser = parse_reference)]
    vm: Option<Reference>,

    #[command(flatten)]
    api: ApiArguments,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Reviewed(Review);

impl fmt::Display for Reviewed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Review {
            users,
            tokens,
            roles,
            unlimited_tokens,
            identity_providers,
            group_grants,
            emergency_credentials,
            sessions,
        } = &self.0;
        let rows: Vec<_> = users.iter().flat_map(of_user).collect();
        match rows.is_empty() {
            true => writeln!(f, "there are no users")?,
            false => {
                let head = ["USER", "ROLE", "WHERE", "GIVEN BY", "LAST SIGN-IN"];
                writeln!(f, "{}", Table { head, rows })?;
            }
        }
        match tokens.is_empty() {
            true => writeln!(f, "\nthere are no tokens for programs")?,
            false => {
                let head = ["TOKEN", "ROLE", "WHERE", "OF", "ENDS"];
                writeln!(f, "\n{}", Table { head, rows: tokens.iter().map(of_token).collect() })?;
            }
        }
        if !identity_providers.is_empty() {
            let head = ["GROUP", "ROLE", "WHERE", "GIVEN BY", "OF"];
            let rows: Vec<_> =
                identity_providers.iter().flat_map(|one| of_provider(one, group_grants)).collect();
            writeln!(f, "\n{}", Table { head, rows })?;
        }
        if !emergency_credentials.is_empty() {
            let head = super::emergency::HEAD;
            let rows = emergency_credentials.iter().map(super::emergency::row).collect();
            writeln!(f, "\n{}", Table { head, rows })?;
        }
        if !sessions.is_empty() {
            let row = |session: &Session| {
                let (begun, ends) = (session.created_unix_seconds, session.expires_unix_seconds);
                [session.user.clone(), utc(begun), utc(ends)]
            };
            let rows = sessions.iter().map(row).collect();
            writeln!(f, "\n{}", Table { head: ["SIGNED IN", "SINCE", "ENDS"], rows })?;
        }
        let own: Vec<&str> =
            roles.iter().filter(|role| !role.built_in).map(|role| role.name.as_str()).collect();
        if !own.is_empty() {
            writeln!(f, "\nroles of this site: {}", own.join(", "))?;
        }
        let unlimited = usize::try_from(*unlimited_tokens).unwrap_or(usize::MAX);
        write!(f, "\n{} without limits, on the control plane's machine", counted(unlimited, "token"))
    }
}

/// A line for each role of a user; one without a role if it has none.
fn of_user(user: &User) -> Vec<[String; 5]> {
    let last = time_or_none(user.last_sign_in_unix_seconds);
    let line =
        |role: String, place: String, by: String| [user.name.to_string(), role, place, by, last.clone()];
    let of = |grant: &Grant| line(grant.role.to_string(), scope::display(&grant.scope), grant.by.clone());
    match user.grants.is_empty() {
        true => vec![line("none".to_owned(), String::new(), String::new())],
        false => user.grants.iter().map(of).collect(),
    }
}

/// A line for each role of a provider's groups; one without a role if they have none.
fn of_provider(provider: &IdentityProvider, grants: &[Grant]) -> Vec<[String; 5]> {
    let name = &provider.name;
    let line = |group: String, role: String, place: String, by: String| {
        [format!("{name}:{group}"), role, place, by, provider.issuer.to_string()]
    };
    let of = |grant: &Grant| {
        let group = grant.group.as_ref().filter(|group| group.provider == *name)?;
        Some(line(
            group.group.to_string(),
            grant.role.to_string(),
            scope::display(&grant.scope),
            grant.by.clone(),
        ))
    };
    let lines: Vec<_> = grants.iter().filter_map(of).collect();
    match lines.is_empty() {
        true => vec![line(String::new(), "none".to_owned(), String::new(), String::new())],
        false => lines,
    }
}

fn of_token(token: &Token) -> [String; 5] {
    [
        token.name.to_string(),
        token.role.to_string(),
        scope::display(&token.scope),
        owner(token),
        utc(token.expires_unix_seconds),
    ]
}

impl ReviewArguments {
    pub(super) fn run(&self, output: &Output) -> Result<(), CliError> {
        output.answer(&Reviewed(self.api.connect()?.get("/v1/access")?))
    }
}

impl ExplainArguments {
    pub(super) fn run(&self, output: &Output) -> Result<(), CliError> {
        let Self { user, operation, vm, api } = self;
        let wish = Explain { user: user.clone().into(), operation: operation.clone(), vm: vm.clone() };
        let explanation: Explanation = api.connect()?.post_for("/v1/access/explanations", &wish)?;
        let place = vm.as_ref().map_or_else(|| "the whole site".to_owned(), |vm| format!("VM {vm}"));
        let text = told(&explanation, &format!("{operation} for {place}"), user);
        show(output, explanation, text)
    }
}

fn told(explanation: &Explanation, what: &str, user: &Name) -> String {
    let Explanation { allowed, needs, lacks, grants } = explanation;
    let mut text = match allowed {
        true => format!("{user} may call {what}"),
        false => format!("{user} may not call {what}: it lacks {lacks}"),
    };
    if !needs.is_empty() {
        text.push_str(&format!("\n  it takes  {needs}"));
    }
    for grant in grants {
        text.push_str(&format!("\n  role      {} for {}", grant.role, scope::display(&grant.scope)));
    }
    text
}
