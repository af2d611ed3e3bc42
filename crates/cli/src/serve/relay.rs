//! `strongroom memory-relay`: hostd starts it for one attempt to move a running VM. It has the
//! host's identity, and passes the VM's memory on between QEMU and the other host. It is not for
//! users.

use std::net::TcpListener;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use rustls::pki_types::CertificateDer;
use strongroom_files::FileError;
use strongroom_host::orders::{RelayBirth, RelayEnd, RelayReport};
use strongroom_host::protocol::Problem;
use strongroom_host::wire::Wire;
use strongroom_hostd::daemon::config::HostConfig;
use strongroom_keyserver::access::ClientId;
use strongroom_keyserver::grant::VmGeneration;
use strongroom_migrate::{Attempt, Migration, Options, Site, UsedGrants};
use strongroom_worker::prepare_for_keys;

use super::identity::Identity;
use super::join::Joined;
use crate::error::CliError;
use crate::keyserver::read_certificates;

/// The name of the relay's command.
pub const RELAY_COMMAND: &str = "memory-relay";
/// Only the lab's examples are built so that they encrypt nothing.
const _: () =
    assert!(!strongroom_migrate::record::IS_NULL, "the program is not built with STRONGROOM_NULL_CIPHER");
/// How much a source yields its processor to guests.
const NICER_THAN_GUESTS: i32 = 5;
/// The directory of used grants, in hostd's home.
const USED: &str = "migrations";

/// The relay gets everything else over the socket that it inherits.
#[derive(Debug, Args)]
#[command(after_help = "Example of what starts one:
  strongroom serve")]
pub struct RelayArguments {
    /// The control plane of a host that has joined no other machine's site.
    #[arg(long, value_name = "CLIENT")]
    control: Option<ClientId>,
}

impl RelayArguments {
    /// Passes a VM's memory on, until all of it has passed or hostd is gone.
    pub fn run(&self) -> Result<ExitCode, CliError> {
        let failed = |error| CliError::File(FileError { action: "use", path: "/dev/stdin".into(), error });
        let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
        let not_born = || CliError::Usage("a relay of a VM's memory is started by hostd".to_owned());
        let wire = Arc::new(Wire::adopt(socket).ok_or_else(not_born)?);
        let _ = rustix::thread::set_name(c"strongroom-move");
        prepare_for_keys().map_err(|error| CliError::Usage(error.to_string()))?;
        let Ok((birth, files)) = wire.receive::<RelayBirth>() else { return Err(not_born()) };
        let file = files.into_iter().next().ok_or_else(not_born)?;
        let is_source = matches!(birth.end, RelayEnd::Source { .. });
        if is_source {
            // The guest works on while its memory passes. In its stop the processors are free.
            let _ = rustix::process::nice(NICER_THAN_GUESTS);
        }
        let begun = self.begin(birth, file).and_then(|migration| {
            // QEMU is told to send once the target has admitted this host.
            match is_source && !migration.is_established() {
                true => migration.wait().map(|_| None).map_err(|error| problem(&error)),
                false => Ok(Some(migration)),
            }
        });
        let passed = begun.and_then(|migration| {
            let Some(migration) = migration else { return Ok(()) };
            let wire = Arc::clone(&wire);
            if wire.send(&RelayReport::Ready, &[]).is_err() {
                return Ok(());
            }
            // hostd sends nothing more. Its end is the end of the move, and QEMU notices it.
            let watch = move || {
                let _ = wire.receive::<RelayReport>();
                std::process::exit(1);
            };
            std::thread::Builder::new().name("hostd".to_owned()).spawn(watch).map_err(Problem::system)?;
            migration.wait().map(drop).map_err(|error| problem(&error))
        });
        let is_well = passed.is_ok();
        let _ = wire.send(&RelayReport::Ended(passed.err()), &[]);
        Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn begin(&self, birth: RelayBirth, file: OwnedFd) -> Result<Migration, Problem> {
        let site = self.site(&birth.home).map_err(|error| problem(&error))?;
        let used = birth.home.join(USED);
        std::fs::create_dir_all(&used).map_err(Problem::system)?;
        let used = UsedGrants::in_directory(&used);
        let RelayBirth { home: _, vm, generation, is_encrypted, permit, settings, qemu_user, end } = birth;
        let attempt = Attempt {
            vm,
            generation: VmGeneration(generation.0),
            grant: permit.grant,
            signer: CertificateDer::from(permit.signer),
            is_encrypted,
        };
        let options = Options {
            channels_max: u16::from(settings.more_channels) + 1,
            bytes_per_second: NonZeroU64::new(settings.bytes_per_second),
            qemu_user: Some(qemu_user),
        };
        let begun = match end {
            RelayEnd::Source { to } => {
                Migration::send(attempt, site, &used, to, UnixListener::from(file), options)
            }
            RelayEnd::Target { qemu } => {
                Migration::receive(attempt, site, &used, TcpListener::from(file), &qemu, options)
            }
        };
        begun.map_err(|error| problem(&error))
    }

    /// What this host knows of its site.
    fn site(&self, home: &Path) -> Result<Site, CliError> {
        let (name, control, revocations) = match Joined::of_home(home)? {
            Some(joined) => (joined.name.clone(), joined.control(), joined.revocations(home)?),
            None => {
                let used = |error| {
                    let (action, path) = ("use the configuration in", home.to_owned());
                    CliError::File(FileError { action, path, error })
                };
                let name = HostConfig::of_home(home).map_err(used)?.name;
                let unknown = || CliError::Usage("this host belongs to no control plane".to_owned());
                (name, self.control.ok_or_else(unknown)?, Arc::default())
            }
        };
        let files = Identity::host(&name, home)?.files();
        Ok(Site {
            authorities: read_certificates(&files.ca)?,
            certificate: files.read_certificate()?,
            key: files.read_key()?,
            revocations,
            control,
        })
    }
}

fn problem(error: &impl std::fmt::Display) -> Problem {
    Problem::new("relay", error.to_string())
}
