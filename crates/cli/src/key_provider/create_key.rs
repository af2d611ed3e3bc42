//! `strongroom key-provider create-key`.

use std::fmt;

use clap::Args;
use serde::Serialize;
use strongroom_keys::{KeyRequestId, ProviderKeyId, ProviderName, WrappedKek};
use strongroom_providers::{FailedProvider, ProviderKeyring, UnseenKey};

use crate::error::CliError;
use crate::home::HomeArguments;
use crate::output::Output;

/// The arguments of `create-key`.
#[derive(Debug, Args)]
#[command(
    after_help = "The key is created at the provider and stays there: this machine does not see it. A \
control plane creates the key of a volume in this way, and a host then creates the volume under a grant: \
volume create --key-id KEY --grant FILE. A repeated command with the same --request returns the same \
key.

Examples:
  strongroom key-provider create-key corp
  strongroom key-provider create-key corp --request 7d6c0f0e-4a3f-4a0c-9a55-0d7e6a9c2f10"
)]
pub struct CreateKeyArguments {
    /// Name of the key provider
    name: ProviderName,

    /// Id of this request, so that it can be repeated [default: random]
    #[arg(long, value_name = "UUID")]
    request: Option<KeyRequestId>,

    #[command(flatten)]
    home: HomeArguments,
}

#[derive(Serialize)]
struct Created {
    key_provider: ProviderName,
    key: ProviderKeyId,
    wrapped: Option<WrappedKek>,
}

impl fmt::Display for Created {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.key)
    }
}

impl CreateKeyArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let request = self.request.unwrap_or_else(KeyRequestId::random);
        let made = ProviderKeyring::of_home(&self.home.path()?)
            .provider(&self.name)
            .and_then(|provider| provider.create_unseen(request));
        let UnseenKey { key, wrapped } =
            made.map_err(|error| CliError::Provider(FailedProvider { name: self.name.clone(), error }))?;
        output.answer(&Created { key_provider: self.name.clone(), key, wrapped })
    }
}
