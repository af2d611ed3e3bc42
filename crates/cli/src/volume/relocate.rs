//! `strongroom volume move`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::{
    CopiedVolume, Descriptor, RelocateOptions, RelocateProgress, describe, move_within, withdraw,
};
use strongroom_jobs::JobError;
use strongroom_jobs::datastores::vm_of;
use strongroom_keys::KekSource;
use strongroom_libvirt::Service;
use strongroom_processes::Signals;
use strongroom_types::display_bytes;
use strongroom_worker::control::{Client, Peer};
use strongroom_worker::{MergeError, ServedError, ServedVolume, copy_served, copy_volume};

use super::open::OpenArguments;
use super::reencrypt::ThrottleArguments;
use super::target::absolute;
use crate::error::CliError;
use crate::output::Output;
use crate::progress::Meter;

/// How often the command looks whether an exposure has ended.
const LOOKS_EVERY: Duration = Duration::from_millis(200);

/// The arguments of `move`.
#[derive(Debug, Args)]
#[command(
    after_help = "The volume keeps its name, its snapshots and its keys. In another file system it is copied as it \
is, as ciphertext, and read back; the volume at its former place is deleted when that is complete. If the \
command is interrupted or killed, the volume is where it was: run it again to go on. What was copied lies in \
DIR/.strongroom-moving-..., and can be deleted with 'volume delete'. Layers that linked clones share are \
copied, too.

An exposed volume is copied while it is used, in rounds: a new layer takes what is written, and those below \
are copied, with pauses so that clients keep --clients-keep percent of their speed. Then the command waits \
until the exposure is ended, copies the rest, and the volume can be exposed at its new place. 'volume \
snapshot merge' merges the layers that this has put on.

Example:
  strongroom volume move ./ds/vm1 --to /mnt/fast --key-file vm1.key"
)]
pub struct MoveArguments {
    /// Path of the volume
    path: PathBuf,

    /// The datastore that it moves to
    #[arg(long, value_name = "DIR")]
    to: PathBuf,

    #[command(flatten)]
    throttle: ThrottleArguments,

    #[command(flatten)]
    open: OpenArguments,
}

#[derive(Serialize)]
struct Moved {
    path: PathBuf,
    from: PathBuf,
    volume_id: String,
    generation: u64,
    /// Of a volume that was only renamed, nothing.
    copied: Option<Copied>,
}

/// What was copied.
#[derive(Serialize)]
struct Copied {
    layers: usize,
    shared_layers: usize,
    read_bytes: u64,
    written_bytes: u64,
}

impl From<CopiedVolume> for Copied {
    fn from(copied: CopiedVolume) -> Self {
        let CopiedVolume { layers, shared_layers, read_bytes, written_bytes } = copied;
        Self { layers, shared_layers, read_bytes, written_bytes }
    }
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        let Some(Copied { layers, shared_layers, read_bytes, .. }) = &self.copied else {
            return write!(f, "{path}: moved within its file system; nothing was copied");
        };
        writeln!(f, "{path}: {layers} layers were copied, {}, and read back", display_bytes(*read_bytes))?;
        if *shared_layers > 0 {
            writeln!(
                f,
                "{shared_layers} of them were shared with linked clones or their origin, which keep theirs"
            )?;
        }
        write!(f, "{path} is generation {}; nothing is left of {}", self.generation, self.from.display())
    }
}

impl MoveArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let Self { path: from, to, open, .. } = self;
        let to = to.join(from.file_name().unwrap_or_default());
        for path in [from, &to] {
            if let Some(vm) = vm_of(path) {
                let path = path.display();
                return Err(CliError::Usage(format!(
                    "{path} lies in the directory of VM {vm}, whose configuration says what its disks are"
                )));
            }
        }
        let described = describe(from)?.descriptor;
        described.expect_volume(from, open.freshness.expect_volume)?;
        let key = open.ask_for_key(from)?;
        if matches!(described.key_source(), Some(KekSource::Provider(_))) {
            open.key.note_datastore_of(&to)?;
        }
        let options = RelocateOptions {
            protection: key.protection(),
            lock_wait: open.lock.lock_wait,
            least_generation: open.freshness.least_generation,
        };
        let is_exposed = Client::connect(from)?.is_some();
        let renamed = if is_exposed { None } else { move_within(from, &to, &options)? };
        let (descriptor, copied) = match renamed {
            Some(descriptor) => (descriptor, None),
            None => {
                let (descriptor, copied) = self.copy(&to, &options, is_exposed, output)?;
                (descriptor, Some(copied))
            }
        };
        if let Some(unit) = Service::unit_of(&absolute(from)?) {
            output.remark(&format!(
                "{unit} would look for it at its former place: call 'vm disk attach --libvirt DOMAIN {}'.",
                to.display()
            ));
        }
        output.answer(&Moved {
            path: to,
            from: from.clone(),
            volume_id: descriptor.volume.to_string(),
            generation: descriptor.generation,
            copied: copied.map(Copied::from),
        })
    }

    /// Copies the volume into another file system, and deletes the former one; of one that is
    /// exposed, what is written last when that has ended. No record but the two directories says
    /// where it is: the removal of the former descriptor, with which a deletion begins, is the
    /// commit.
    fn copy(
        &self,
        to: &Path,
        options: &RelocateOptions<'_>,
        is_exposed: bool,
        output: &Output,
    ) -> Result<(Descriptor, CopiedVolume), CliError> {
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let mut meter = None;
        let mut report = |progress: RelocateProgress| {
            let RelocateProgress { done_bytes, left_bytes, .. } = progress;
            meter
                .get_or_insert_with(|| Meter::start(output, "moving", done_bytes + left_bytes))
                .at(done_bytes);
        };
        let named = |error: MergeError| match error {
            MergeError::Datastore(error) => CliError::from(error),
            MergeError::Transfer(error) => CliError::transfer(error, &self.path, "move", to),
            error @ MergeError::Stack(_) => {
                JobError::NotRewritten { path: self.path.clone(), error: Box::new(error) }.into()
            }
        };
        let stop = signals.stop_flag();
        let copied = if is_exposed {
            let served = ServedVolume { path: &self.path, supervisor: Peer::Trusted };
            let throttle = self.throttle.into();
            let named_beside = |error: ServedError| match error {
                ServedError::Rewrite(error) => named(error),
                ServedError::Control(error) => error.into(),
            };
            let mut copy =
                copy_served(served, to, options, throttle, stop, &mut report).map_err(named_beside)?;
            output.remark(&format!(
                "{} were copied while the volume is used, and {} are left; end its exposure now",
                display_bytes(copy.copied().read_bytes),
                display_bytes(copy.left().bytes)
            ));
            while Client::connect(&self.path)?.is_some() {
                if signals.came() {
                    return Err(CliError::Interrupted);
                }
                copy.keep_up(throttle, stop, &mut report).map_err(named_beside)?;
                std::thread::sleep(LOOKS_EVERY);
            }
            copy.finish(stop, &mut report)
        } else {
            copy_volume(&self.path, to, options, stop, &mut report)
        };
        let (mut moving, copied) = copied.map_err(named)?;
        drop(meter);
        let descriptor = moving.take_place()?;
        if let Err(error) = moving.remove_former() {
            // Somebody reads a snapshot of it, perhaps. If it is still there, it is the volume.
            if describe(&self.path).is_ok() {
                withdraw(to, descriptor.volume, options)?;
            }
            return Err(error.into());
        }
        Ok((descriptor, copied))
    }
}
