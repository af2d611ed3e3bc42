//! `strongroom keyserver grant`.

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use clap::{Args, value_parser};
use serde::Serialize;
use strongroom_keys::ProviderKeyId;
use strongroom_keyserver::access::{PublicKeySha256, Role};
use strongroom_keyserver::authority::claimed_identity;
use strongroom_keyserver::grant::verify::GRANT_MAX_LIFETIME_SECONDS;
use strongroom_keyserver::grant::{
    Grant, GrantPeriod, GrantTime, GrantedOperation, GrantedOperations, VmGeneration, VmId,
};
use strongroom_keyserver::management::protocol::HostAnswer;
use strongroom_keyserver::management::questions::Hosts;

use super::administration::AdministrationArguments;
use super::certificates::{read_certificates, write_whole};
use crate::error::CliError;
use crate::grants;
use crate::output::{Output, utc};

/// The default validity of a grant: a VM's keys are fetched within seconds of its start.
const VALID_SECONDS: u64 = 300;

/// The arguments of `grant`.
#[derive(Debug, Args)]
#[command(after_help = "A grant lets one host fetch these keys in one request, for this VM, until the VM \
reaches a higher generation: increase the generation each time the VM is started or moved, which \
invalidates earlier grants. The grant is signed with the key of the control client's own certificate, in \
DIR; no key of the VM is used here. The host presents it with: volume expose --grant FILE

A grant is not a key, and only that host can use it; do not give it to others all the same.

Examples:
  strongroom keyserver grant --identity /etc/strongroom/control --server kms1:5697 --vm 5f0c2d9b-8a11-4a2c-9e53-0c6f7d1c0f1e --vm-generation 3 \\
    --host host1 --key-id 8d2b... --into vm1.grant
  strongroom keyserver grant --identity ./control --vm 5f0c2d9b-8a11-4a2c-9e53-0c6f7d1c0f1e --vm-generation 3 --host-certificate host1.pem --key-id 8d2b...")]
pub struct GrantArguments {
    /// Id of the VM
    #[arg(long, value_name = "VM")]
    vm: VmId,

    /// Generation of the VM: how often it was started or moved, including this time; it never
    /// decreases
    #[arg(long, value_name = "N")]
    vm_generation: u64,

    /// Key that the host may fetch; repeatable
    #[arg(long = "key-id", value_name = "KEY", required = true)]
    keys: Vec<ProviderKeyId>,

    #[command(flatten)]
    host: HostArguments,

    /// Validity in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = VALID_SECONDS,
          value_parser = value_parser!(u64).range(1..=GRANT_MAX_LIFETIME_SECONDS))]
    valid: u64,

    /// Write the grant to FILE, readable only by its owner, instead of printing it
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,

    #[command(flatten)]
    server: AdministrationArguments,
}

/// The host.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct HostArguments {
    /// Host, by name or id; its public key is requested from the server
    #[arg(long, value_name = "NAME")]
    host: Option<String>,

    /// Host, by the SHA-256 of its public key; no server is asked
    #[arg(long, value_name = "SHA256")]
    host_key: Option<PublicKeySha256>,

    /// Host, by its certificate; no server is asked
    #[arg(long, value_name = "FILE")]
    host_certificate: Option<PathBuf>,
}

#[derive(Serialize)]
struct Granted {
    id: String,
    vm: String,
    vm_generation: u64,
    host: Option<String>,
    host_public_key: String,
    keys: Vec<String>,
    expires_unix_seconds: u64,
    /// The grant, unless it was written to a file.
    grant: Option<String>,
    file: Option<PathBuf>,
}

impl GrantArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let signer = self.server.grant_signer()?;
        let (host, public_key) = self.host.find(&self.server)?;
        let not_before = GrantTime::of(SystemTime::now().into());
        let expires = GrantTime(not_before.0.saturating_add(self.valid));
        let operations = GrantedOperations::of(GrantedOperation::Get, &[GrantedOperation::ReadMetadata]);
        let objects = self.keys.iter().map(ToString::to_string).collect();
        let generation = VmGeneration(self.vm_generation);
        let grant = Grant::new(
            self.vm,
            generation,
            public_key,
            operations,
            objects,
            GrantPeriod { not_before, expires },
        )
        .map_err(|error| CliError::Usage(error.to_string()))?;
        let text = grant
            .sign(&signer)
            .map(|bytes| grants::to_text(&bytes))
            .map_err(|error| CliError::Usage(error.to_string()))?;
        if let Some(file) = &self.into {
            write_whole(file, text.as_bytes())?;
        }
        output.answer(&Granted {
            id: grant.id().to_string(),
            vm: self.vm.to_string(),
            vm_generation: self.vm_generation,
            host,
            host_public_key: public_key.to_string(),
            keys: grant.objects().to_vec(),
            expires_unix_seconds: expires.0,
            grant: self.into.is_none().then_some(text),
            file: self.into.clone(),
        })
    }
}

impl HostArguments {
    /// The host's name, if known, and the key with which it authenticates.
    fn find(&self, server: &AdministrationArguments) -> Result<(Option<String>, PublicKeySha256), CliError> {
        match (&self.host, self.host_key, &self.host_certificate) {
            (Some(host), _, _) => {
                let question = Hosts { host: host.clone() };
                let hosts = server.administrator()?.ask(question)?;
                one_host(host, hosts)
            }
            (None, Some(key), _) => Ok((None, key)),
            (None, None, Some(file)) => of_certificate(file),
            (None, None, None) => Err(CliError::Usage("say which host: --host NAME".to_owned())),
        }
    }
}

fn one_host(host: &str, hosts: Vec<HostAnswer>) -> Result<(Option<String>, PublicKeySha256), CliError> {
    match hosts.as_slice() {
        [one] => Ok((Some(one.name.to_string()), one.public_key)),
        [] => Err(CliError::Usage(format!(
            "the key server has no host '{host}' with a certificate that is good now; see `strongroom keyserver client list`"
        ))),
        several => {
            let ids: Vec<_> = several.iter().map(|host| host.client.to_string()).collect();
            Err(CliError::Usage(format!(
                "{} hosts are called '{host}'; give the id instead of the name: {}",
                several.len(),
                ids.join(", ")
            )))
        }
    }
}

fn of_certificate(file: &std::path::Path) -> Result<(Option<String>, PublicKeySha256), CliError> {
    let certificates = read_certificates(file)?;
    let not_a_host = |what: String| CliError::Usage(format!("{} {what}; a host's is needed", file.display()));
    let identity = certificates.first().and_then(claimed_identity);
    let identity =
        identity.ok_or_else(|| not_a_host("is no certificate of a key server's client".to_owned()))?;
    if identity.role != Role::Host {
        return Err(not_a_host(format!("is the certificate of a client of role {}", identity.role)));
    }
    Ok((Some(identity.name.to_string()), identity.public_key))
}

impl fmt::Display for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(file) = &self.file else {
            return f.write_str(self.grant.as_deref().unwrap_or_default().trim_end());
        };
        let host = self.host.as_ref().unwrap_or(&self.host_public_key);
        let keys = if self.keys.len() == 1 { "a key" } else { "keys" };
        let until = utc(self.expires_unix_seconds);
        write!(
            f,
            "host {host} may fetch {keys} of VM {}, generation {}, once, until ",
            self.vm, self.vm_generation
        )?;
        write!(f, "{until}; the grant is in {}", file.display())
    }
}
