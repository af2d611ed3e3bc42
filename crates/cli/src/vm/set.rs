//! `strongroom vm set`.

use std::fmt;

use clap::Args;
use serde::Serialize;
use strongroom_api::Name;
use strongroom_api::task::Task;
use strongroom_api::vm::{
    Cdrom, Cryptoperiod, DayWindow, MemorySize, Notes, PatchVm, SetCryptoperiod, Tag, TagChanges, TagKey,
    VmView,
};
use strongroom_types::display_seconds;

use super::options::{
    BoardArguments, BootArguments, GrowthArguments, NetworkArguments, RestartArgument, cpus, parse_cdrom,
    parse_memory,
};
use super::snapshot_schedule::parse_period;
use crate::api::{Api, ApiArguments, Begun, WaitArguments, follow, segment};
use crate::duration::{display_time_of_day, parse_time_of_day};
use crate::error::CliError;
use crate::output::Output;

/// The arguments of `set`.
#[derive(Debug, Args)]
#[command(
    after_help = "Only the given settings change. Name, notes and tags change at once, whether the VM runs or not. So do --cpus and --memory, alone, up to \
what the VM was started with as --max-cpus and --max-memory; memory only grows then, by multiples of 128M. Everything else changes while \
the VM is off. --net replaces all network interfaces; see `strongroom vm nic` for single ones.

With --rekey-every the VM's data is put under new data keys when they have been used for so long, as by 'vm key rotate --data', in the \
window if there is one. A VM that does not allow that then has it as soon as it does; an alarm says so if that is late, or fails. Not \
together with other settings; the VM may run.

Examples:
  strongroom vm set web1 --cpus 4 --memory 8G
  strongroom vm set web1 --max-cpus 8 --max-memory 16G
  strongroom vm set web1 --processor x86-64-v3
  strongroom vm set web1 --machine-type pc-q35-7.2
  strongroom vm set web1 --net bridge=br0
  strongroom vm set web1 --cdrom none
  strongroom vm set web1 --boot cdrom,disk0
  strongroom vm set web1 --restart never
  strongroom vm set web1 --name shop1
  strongroom vm set web1 --tag env=prod --tag web --untag test --notes 'the web server of the shop'
  strongroom vm set web1 --rekey-every 90d --rekey-window 01:00-05:00
  strongroom vm set web1 --rekey-every never"
)]
pub struct SetArguments {
    /// Name or id of the VM
    vm: String,

    /// New name; also while the VM runs. Its directory in the datastore keeps its name
    #[arg(long, value_name = "NAME")]
    name: Option<Name>,

    /// Notes about the VM; an empty text removes them
    #[arg(long, value_name = "TEXT")]
    notes: Option<Notes>,

    /// Tag that the VM gets, KEY or KEY=VALUE; repeatable
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<Tag>,

    /// Key of a tag that the VM loses; repeatable
    #[arg(long = "untag", value_name = "KEY")]
    untags: Vec<TagKey>,

    /// Number of virtual processors
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,

    /// Guest memory, such as 512M or 2G
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    memory: Option<MemorySize>,

    #[command(flatten)]
    growth: GrowthArguments,

    #[command(flatten)]
    board: BoardArguments,

    #[command(flatten)]
    network: NetworkArguments,

    /// Image in its CD-ROM drive, a file in one of the host's boot directories; `none` removes the
    /// drive
    #[arg(long, value_name = "FILE", value_parser = parse_cdrom)]
    cdrom: Option<Cdrom>,

    #[command(flatten)]
    boot: BootArguments,

    /// When to restart it automatically
    #[arg(long, value_enum)]
    restart: Option<RestartArgument>,

    /// How long its data keys are used, 1d to 3660d, or `never` for no limit
    #[arg(long, value_name = "TIME", value_parser = parse_rekey, conflicts_with_all = ["name", "notes", "tags", "untags", "order", "cpus", "memory", "max_cpus", "max_memory", "machine_type", "processor", "networks", "cdrom", "kernel", "restart"])]
    rekey_every: Option<Rekey>,

    /// When in the day they may be renewed, UTC; at any time without it
    #[arg(long, value_name = "HH:MM-HH:MM", requires = "rekey_every", value_parser = parse_window)]
    rekey_window: Option<DayWindow>,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// What `--rekey-every` says.
#[derive(Clone, Copy, Debug)]
enum Rekey {
    Every(u32),
    Never,
}

fn parse_rekey(text: &str) -> Result<Rekey, String> {
    if text == "never" { Ok(Rekey::Never) } else { parse_period(text).map(Rekey::Every) }
}

/// Parses `01:00-05:00`.
fn parse_window(text: &str) -> Result<DayWindow, String> {
    let (from, to) =
        text.split_once('-').ok_or_else(|| format!("'{text}' is no window; write 01:00-05:00"))?;
    Ok(DayWindow { from_minutes: parse_time_of_day(from)?, to_minutes: parse_time_of_day(to)? })
}

/// A cryptoperiod in words.
pub fn in_words(cryptoperiod: &Cryptoperiod) -> String {
    let every = format!("every {}", display_seconds(cryptoperiod.every_s.into()));
    match cryptoperiod.window {
        Some(DayWindow { from_minutes, to_minutes }) => format!(
            "{every}, between {} and {} UTC",
            display_time_of_day(from_minutes),
            display_time_of_day(to_minutes)
        ),
        None => every,
    }
}

#[derive(Serialize)]
struct Rekeyed {
    #[serde(flatten)]
    task: Task,
    #[serde(skip)]
    said: String,
}

impl fmt::Display for Rekeyed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

#[derive(Serialize)]
struct Changed {
    #[serde(flatten)]
    task: Task,
    #[serde(skip)]
    said: String,
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

impl SetArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        if let Some(rekey) = self.rekey_every {
            return self.set_cryptoperiod(&self.api.connect()?, rekey, output);
        }
        let changes = TagChanges { set: self.tags.clone(), remove: self.untags.clone() };
        let description = PatchVm {
            name: self.name.clone(),
            notes: self.notes.clone(),
            tags: (changes != TagChanges::default()).then_some(changes),
            ..PatchVm::default()
        };
        let wish = PatchVm {
            cpus: self.cpus.map(cpus).transpose()?,
            memory_bytes: self.memory,
            growth: self.growth.given(),
            machine_type: self.board.machine_type.clone(),
            processor: self.board.processor.clone(),
            nics: self.network.nics()?,
            boot: self.boot.boot()?,
            cdrom: self.cdrom.clone(),
            vnc: None,
            restart: self.restart.map(Into::into),
            ..description.clone()
        };
        if wish == PatchVm::default() {
            return Err(CliError::Usage("say what to change, as in --memory 8G".to_owned()));
        }
        let api = self.api.connect()?;
        let task = api.patch(&format!("/v1/vms/{}", segment(&self.vm)), &wish)?;
        if self.wait.no_wait {
            return output.answer(&Begun(task));
        }
        let task = follow(&api, output, "changing", task)?;
        // A change of the machine while it is on is one that it has at once. Who may not look is
        // told less.
        let named = self.name.as_ref().map_or(self.vm.as_str(), Name::as_str);
        let shown = api.get::<VmView>(&format!("/v1/vms/{}", segment(named)));
        let is_at_once = wish == description || shown.is_ok_and(|vm| vm.summary.power.is_on());
        let said = match (&self.name, is_at_once) {
            (Some(name), true) => format!("{} is named {name} now", self.vm),
            (None, true) => format!("{} is changed", self.vm),
            (Some(name), false) => {
                format!("{} is named {name} now, and changed from its next start on", self.vm)
            }
            (None, false) => format!("{} is changed, from its next start on", self.vm),
        };
        output.answer(&Changed { task, said })
    }

    fn set_cryptoperiod(&self, api: &Api, rekey: Rekey, output: &Output) -> Result<(), CliError> {
        let cryptoperiod = match (rekey, self.rekey_window) {
            (Rekey::Every(every_s), window) => Some(Cryptoperiod { every_s, window }),
            (Rekey::Never, None) => None,
            (Rekey::Never, Some(_)) => {
                return Err(CliError::Usage("there is no window without a period".to_owned()));
            }
        };
        let said = match &cryptoperiod {
            Some(wanted) => format!("the data keys of {} are renewed {}", self.vm, in_words(wanted)),
            None => format!("the data keys of {} are not renewed by themselves", self.vm),
        };
        let wish = SetCryptoperiod { cryptoperiod };
        // The task is done with the answer.
        let task = api.patch(&format!("/v1/vms/{}/cryptoperiod", segment(&self.vm)), &wish)?;
        output.answer(&Rekeyed { task, said })
    }
}
