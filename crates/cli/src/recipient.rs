//! `strongroom recipient`: to whom alarms are sent.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use strongroom_api::Name;
use strongroom_api::access::Done;
use strongroom_api::alarm::Severity;
use strongroom_api::limits::{WEBHOOK_AUTHORITY_BYTES_MAX, WEBHOOK_URL_BYTES_MAX};
use strongroom_api::recipient::{
    Authorities, CreateRecipient, Destination, MailAddress, NewRecipient, Recipient, TestRecipient,
    WebhookUrl,
};
use strongroom_courier::{MailRelay, RelayAddress, RelayError};
use strongroom_files::FileError;

use crate::api::{ApiArguments, CONTROL_DIRECTORY, segment, show, table, time_ms, word};
use crate::error::CliError;
use crate::home::HomeArguments;
use crate::output::Output;

/// The commands for recipients of alarms.
#[derive(Debug, Subcommand)]
pub enum RecipientCommand {
    /// Send alarms to a webhook or a mail address from now on
    Add(AddArguments),
    /// List recipients, and whether messages reach them
    #[command(after_help = "Example:\n  strongroom recipient list")]
    List(ListArguments),
    /// Send a recipient a message now, to see whether it arrives
    #[command(after_help = "Example:\n  strongroom recipient test oncall")]
    Test(RecipientArguments),
    /// Remove a recipient
    #[command(after_help = "Example:\n  strongroom recipient remove oncall")]
    Remove(RecipientArguments),
    /// Show or set the mail relay of this machine's control plane
    Relay(RelayArguments),
}

/// The arguments of `add`.
#[derive(Debug, Args)]
#[command(
    after_help = "A webhook gets JSON in a POST, signed with a secret that is printed once (Standard Webhooks). Mail needs a \
relay: 'strongroom recipient relay'. A message that does not arrive is sent again, and after a minute that is an alarm.

Examples:
  strongroom recipient add oncall --mail oncall@example.com --severity critical
  strongroom recipient add chat --webhook-file chat.url
  strongroom recipient add desk --webhook https://desk.example.com/alarms --authorities ca.pem"
)]
pub struct AddArguments {
    /// Name of the recipient
    name: Name,

    #[command(flatten)]
    to: ToArguments,

    /// File with the certificates of the webhook's authorities, in the place of those of the
    /// control plane's machine
    #[arg(long, value_name = "FILE", conflicts_with = "mail")]
    authorities: Option<PathBuf>,

    /// Least severe alarms to send
    #[arg(long, value_enum, default_value_t = SeverityArgument::Warning)]
    severity: SeverityArgument,

    #[command(flatten)]
    api: ApiArguments,
}

/// Where messages go.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct ToArguments {
    /// Mail address
    #[arg(long, value_name = "ADDRESS")]
    mail: Option<MailAddress>,

    /// Address of a webhook in which nothing is secret: other users of this machine see arguments
    #[arg(long, value_name = "URL")]
    webhook: Option<WebhookUrl>,

    /// File with the address of a webhook
    #[arg(long, value_name = "FILE")]
    webhook_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SeverityArgument {
    Warning,
    Critical,
}

impl From<SeverityArgument> for Severity {
    fn from(severity: SeverityArgument) -> Self {
        match severity {
            SeverityArgument::Warning => Self::Warning,
            SeverityArgument::Critical => Self::Critical,
        }
    }
}

/// The arguments of `list`.
#[derive(Debug, Args)]
pub struct ListArguments {
    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of commands on a recipient.
#[derive(Debug, Args)]
pub struct RecipientArguments {
    /// Name or id of the recipient
    recipient: String,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `relay`.
#[derive(Debug, Args)]
#[command(
    after_help = "Without options, shows what is set. The settings are in a file of the control plane's home, for root or the \
user that 'serve' runs as, and count from the next message on. The password stays in its file.

Examples:
  strongroom recipient relay
  strongroom recipient relay --set smtps://mail.example.com --from strongroom@example.com --user strongroom --password-file mail.password
  strongroom recipient relay --set smtp+plain://127.0.0.1 --from strongroom@example.com"
)]
pub struct RelayArguments {
    /// Relay: smtps://HOST[:465], smtp://HOST[:587] with STARTTLS, or smtp+plain:// on this machine
    #[arg(long, value_name = "URL", requires = "from")]
    set: Option<RelayAddress>,

    /// Sender of messages
    #[arg(long, value_name = "ADDRESS", requires = "set")]
    from: Option<MailAddress>,

    /// User at the relay
    #[arg(long, value_name = "NAME", requires_all = ["set", "password_file"])]
    user: Option<String>,

    /// File with the user's password
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,

    /// File with the certificates of the relay's authorities [default: those of this machine]
    #[arg(long, value_name = "FILE", requires = "set")]
    ca_file: Option<PathBuf>,

    #[command(flatten)]
    home: HomeArguments,
}

impl RecipientCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::Add(arguments) => arguments.run(output),
            Self::List(ListArguments { api }) => {
                let none = "alarms are sent to nobody; add a recipient: strongroom recipient add NAME --mail ADDRESS";
                let head = ["NAME", "ADDRESS", "FROM", "LAST MESSAGE", "WAITING", "TROUBLE"];
                table(output, api.connect()?.list("/v1/recipients")?, head, none, row)
            }
            Self::Test(RecipientArguments { recipient, api }) => {
                let path = format!("/v1/recipients/{}/tests", segment(recipient));
                let reached: Recipient = api.connect()?.post_for(&path, &TestRecipient {})?;
                let said = format!("{} has taken a test message", reached.address);
                show(output, reached, said)
            }
            Self::Remove(RecipientArguments { recipient, api }) => {
                api.connect()?.remove(&format!("/v1/recipients/{}", segment(recipient)))?;
                show(output, Done {}, format_args!("recipient {recipient} is removed"))
            }
            Self::Relay(arguments) => arguments.run(output),
        }
    }
}

fn row(recipient: &Recipient) -> [String; 6] {
    [
        recipient.name.to_string(),
        recipient.address.clone(),
        word(recipient.severity),
        recipient.delivered_unix_ms.map_or_else(|| "none".to_owned(), time_ms),
        recipient.waiting.to_string(),
        recipient.failing.as_ref().map_or_else(String::new, |failing| failing.reason.clone()),
    ]
}

impl AddArguments {
    fn run(&self, output: &Output) -> Result<(), CliError> {
        let Self { name, to, authorities, severity, api } = self;
        let authorities = authorities.as_deref().map(|file| text_in(file, WEBHOOK_AUTHORITY_BYTES_MAX));
        let authorities = authorities.transpose()?.map(Authorities::try_from);
        let authorities = authorities.transpose().map_err(CliError::Usage)?;
        let webhook = match (&to.webhook, &to.webhook_file) {
            (Some(url), _) => Some(url.clone()),
            (None, Some(file)) => {
                let url = text_in(file, WEBHOOK_URL_BYTES_MAX + 1)?;
                let url = WebhookUrl::try_from(url.trim().to_owned());
                Some(url.map_err(|wrong| CliError::Usage(format!("{}: {wrong}", file.display())))?)
            }
            (None, None) => None,
        };
        let to = match (webhook, &to.mail) {
            (Some(url), _) => Destination::Webhook { url, authorities },
            (None, Some(address)) => Destination::Mail { address: address.clone() },
            (None, None) => {
                return Err(CliError::Usage("say where: --mail, --webhook or --webhook-file".to_owned()));
            }
        };
        let wish = CreateRecipient { name: name.clone(), to, severity: Some((*severity).into()) };
        let made: NewRecipient = api.connect()?.post_for("/v1/recipients", &wish)?;
        let said = Made(&made).to_string();
        show(output, made, said)
    }
}

struct Made<'made>(&'made NewRecipient);

impl fmt::Display for Made<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NewRecipient { recipient, secret } = self.0;
        writeln!(f, "alarms go to {} from now on", recipient.address)?;
        if let Some(secret) = secret {
            writeln!(f, "secret with which it verifies them, shown only now: {}", secret.expose())?;
        }
        write!(f, "see whether messages arrive: strongroom recipient test {}", recipient.name)
    }
}

/// The text in a file of limited size.
pub fn text_in(file: &Path, most: usize) -> Result<String, CliError> {
    let content = strongroom_files::read(file, most as u64)
        .map_err(|error| CliError::File(FileError { action: "read", path: file.to_owned(), error }))?;
    String::from_utf8(content)
        .map_err(|_| CliError::Usage(format!("{}: it is not UTF-8 text", file.display())))
}

/// The settings of mail.
#[derive(Serialize)]
struct Relay {
    #[serde(flatten)]
    relay: MailRelay,
}

impl fmt::Display for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MailRelay { relay, from, user, password_file: _, ca_file: _ } = &self.relay;
        write!(f, "mail goes through {relay}, from {}", from.as_str())?;
        user.as_ref().map_or(Ok(()), |user| write!(f, ", as user {user}"))
    }
}

impl RelayArguments {
    fn run(&self, output: &Output) -> Result<(), CliError> {
        let file = MailRelay::file(&self.home.path()?.join(CONTROL_DIRECTORY));
        let (Some(relay), Some(from)) = (&self.set, &self.from) else {
            let relay = MailRelay::read(&file).map_err(|error| match error {
                RelayError::None => CliError::Usage(
                    "no mail relay is set up: strongroom recipient relay --set smtps://HOST --from ADDRESS"
                        .to_owned(),
                ),
                error => CliError::Usage(format!("{}: {error}", file.display())),
            })?;
            return output.answer(&Relay { relay });
        };
        let relay = MailRelay {
            relay: relay.clone(),
            from: from.clone(),
            user: self.user.clone(),
            password_file: absolute(self.password_file.as_deref())?,
            ca_file: absolute(self.ca_file.as_deref())?,
        };
        relay
            .write(&file)
            .map_err(|error| CliError::File(FileError { action: "write", path: file, error }))?;
        output.answer(&Relay { relay })
    }
}

/// The path as the control plane finds it, of a file that can be read.
fn absolute(path: Option<&Path>) -> Result<Option<PathBuf>, CliError> {
    let Some(path) = path else { return Ok(None) };
    let failed = |error| CliError::File(FileError { action: "read", path: path.to_owned(), error });
    std::fs::File::open(path).map_err(failed)?;
    std::path::absolute(path).map(Some).map_err(failed)
}
