//! `strongroom volume info`.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::{
    Integrity, LogUse, Severity, View, ViewSpace, check, describe, describe_log,
};
use strongroom_keys::{LeaseState, RevokedHow};
use strongroom_types::{SnapshotName, display_bytes, without_numbers};
use strongroom_worker::condition::{Condition, State};
use strongroom_worker::control::{KeyStatus, Peer, statistics_of};

use super::describe::{ReencryptionFacts, VolumeFacts};
use super::open::FreshnessArguments;
use super::snapshot::{WAITS_FOR_OTHERS, in_words};
use super::statistics::StatisticsFacts;
use crate::error::CliError;
use crate::keys::KeyArguments;
use crate::output::{Output, utc};

/// The arguments of `info`.
#[derive(Debug, Args)]
#[command(
    after_help = "Without the key, shows the content of the descriptor; with the key, also whether it is \
authentic.

Examples:
  strongroom volume info ./ds/vm1
  strongroom volume info ./ds/vm1 --key-file vm1.key
  strongroom volume info ./ds/vm1 --json | jq .size_bytes"
)]
pub struct InfoArguments {
    /// Path of the volume
    path: PathBuf,

    #[command(flatten)]
    key: KeyArguments,

    #[command(flatten)]
    freshness: FreshnessArguments,
}

#[derive(Serialize)]
struct Info {
    #[serde(flatten)]
    volume: VolumeFacts,
    /// The chain of layers, the top first.
    chain: Vec<ChainLayer>,
    /// What its present content and each of its snapshots take.
    contents: Vec<ContentFacts>,
    /// The first-write log; `None` for a volume without one, or if it cannot be read now.
    log: Option<LogUse>,
    /// Whether the volume's key has authenticated the descriptor.
    authenticated: bool,
    datastore: DatastoreFacts,
    /// The requests of its clients since it was exposed; `None` if it is not exposed.
    statistics: Option<StatisticsFacts>,
}

/// What one content of the volume takes, in bytes.
#[derive(Serialize)]
struct ContentFacts {
    /// The snapshot; `None` for the present content.
    snapshot: Option<SnapshotName>,
    logical_bytes: u64,
    /// The files of all layers that it needs.
    committed_bytes: u64,
    /// The files of those that nothing else needs.
    unshared_bytes: u64,
}

/// One layer.
#[derive(Serialize)]
struct ChainLayer {
    layer_id: String,
    /// The size that the guest sees or, for a lower layer, last saw.
    size_bytes: u64,
}

#[derive(Serialize)]
struct DatastoreFacts {
    file_system: String,
    total_bytes: u64,
    available_bytes: u64,
}

impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { volume, chain, contents, log, authenticated, datastore, statistics } = self;
        let bytes = |bytes: u64| format!("{} ({bytes} bytes)", display_bytes(bytes));
        writeln!(f, "{}", volume.path.display())?;
        writeln!(f, "  size          {}", bytes(volume.size_bytes))?;
        writeln!(f, "  allocated     {}", bytes(volume.allocated_bytes))?;
        if volume.shared_bytes > 0 {
            let own = volume.allocated_bytes.saturating_sub(volume.shared_bytes);
            writeln!(f, "  shared        {} of it with other volumes", bytes(volume.shared_bytes))?;
            writeln!(f, "  its own       {}", bytes(own))?;
        }
        for content in contents.iter().filter(|_| contents.len() > 1) {
            let of = content.snapshot.as_ref().map_or("at present", SnapshotName::as_str);
            let (needs, alone) =
                (display_bytes(content.committed_bytes), display_bytes(content.unshared_bytes));
            writeln!(f, "    {of:<12}{needs}, {alone} of it for nothing else")?;
        }
        writeln!(f, "  space         {}", volume.provisioning)?;
        if let Some(log) = log {
            let (size, used) = (display_bytes(log.size_bytes), display_bytes(log.used_bytes));
            writeln!(
                f,
                "  log           {size} for first writes, {used} of them on their way to their places"
            )?;
        }
        match &volume.encryption {
            Some(facts) => {
                writeln!(f, "  encryption    {}", facts.cipher)?;
                let source = match (&facts.key_provider, &facts.provider_key_id) {
                    (Some(provider), Some(key)) => format!("key provider {provider}, where it is {key}"),
                    _ => format!("a {}", facts.key_source.replace('_', " ")),
                };
                writeln!(f, "  key           from {source}, id {}", facts.kek_id)?;
                if let Some(next) = &facts.next_kek_id
                    && volume.reencrypting.is_none()
                {
                    writeln!(
                        f,
                        "  next key      id {next}; finish with 'volume rekey --kek', either opens the volume"
                    )?;
                }
            }
            None => writeln!(f, "  encryption    NONE: whoever reads the datastore reads the guest's data")?,
        }
        match volume.integrity {
            Some(Integrity::HmacSha256) => {
                writeln!(
                    f,
                    "  integrity     a tag of each block (HMAC-SHA256, 128 bits), of the former format: a block that is erased \
                     with its tag is not noticed; opened to be written, the volume gets new tags"
                )?;
            }
            Some(Integrity::HmacSha256Absence) => {
                writeln!(f, "  integrity     a tag of each block, erased ones too (HMAC-SHA256, 128 bits)")?;
            }
            Some(Integrity::PolyvalAesAbsence) => {
                writeln!(
                    f,
                    "  integrity     a tag of each block, erased ones too (POLYVAL-AES-256, 128 bits)"
                )?;
            }
            None => writeln!(f, "  integrity     none: reads notice no damage")?,
        }
        if let Some(ReencryptionFacts { left_layers, layers, .. }) = &volume.reencrypting {
            writeln!(
                f,
                "  re-encryption {left_layers} of {layers} layers are left; repeat the command that began it, or end it with \
                 'volume rekey --data --cancel'"
            )?;
        }
        writeln!(f, "  volume id     {}", volume.volume_id)?;
        writeln!(f, "  generation    {}", volume.generation)?;
        writeln!(f, "  layers        {}", volume.layers)?;
        if let [top, below @ ..] = chain.as_slice()
            && !below.is_empty()
        {
            writeln!(f, "    {}  {}, takes what is written", top.layer_id, display_bytes(top.size_bytes))?;
            for layer in below {
                writeln!(f, "    {}  {}", layer.layer_id, display_bytes(layer.size_bytes))?;
            }
        }
        if volume.waits_for_others {
            writeln!(f, "  merge         {WAITS_FOR_OTHERS}")?;
        }
        writeln!(f, "  created       {}", utc(volume.created_unix_seconds))?;
        if let Some(exposure) = &volume.exposure {
            let worker = exposure.worker_pid.map_or("restarting".to_owned(), |pid| pid.to_string());
            writeln!(
                f,
                "  exposed       at {}, by process {} with worker {worker}",
                exposure.address, exposure.supervisor_pid
            )?;
            writeln!(f, "  state         {}", state(&exposure.condition))?;
            if let Some(merge) = &exposure.merge {
                writeln!(f, "  merge         {}", in_words(merge))?;
            }
            if let Some(key) = &exposure.key {
                writeln!(f, "  key lease     {}", lease(key))?;
            }
            if let Some(statistics) = statistics {
                write!(f, "{statistics}")?;
            }
        }
        let (free, total) = (display_bytes(datastore.available_bytes), display_bytes(datastore.total_bytes));
        writeln!(f, "  datastore     {}, {free} of {total} free", datastore.file_system)?;
        write!(f, "  descriptor    ")?;
        match (authenticated, &volume.encryption) {
            (true, _) => write!(f, "authentic: the volume's key vouches for it"),
            (false, Some(_)) => write!(f, "not verified: give the key to have it vouch for all this"),
            (false, None) => write!(f, "not verified: without a key nothing can vouch for it"),
        }
    }
}

/// The condition of an exposed volume, and the next step.
fn state(condition: &Condition) -> String {
    let mut text = match (condition.state, &condition.parked) {
        (State::FlushFailed, _) => {
            "a flush FAILED: what was written since may be lost, and no flush succeeds any more; see to \
             the device, then expose the volume anew"
                .to_owned()
        }
        (State::Parked, Some(parked)) => format!(
            "{} requests of the guest ({}) wait for room since {}; nothing is lost: free space in the datastore, and \
             the guest goes on",
            parked.requests,
            display_bytes(parked.bytes),
            utc(parked.since_unix_seconds)
        ),
        (State::KeyUnavailable, _) => {
            "NOT served: its worker has died, and the next one waits for the key (key-unavailable); nothing is lost"
                .to_owned()
        }
        (State::Running | State::Parked, _) => "running".to_owned(),
    };
    if condition.refused_for_room > 0 {
        text += &format!("; {} requests found no room", condition.refused_for_room);
    }
    if condition.device_errors > 0 {
        let last = condition.last_device_error.as_deref().unwrap_or("no reason");
        text += &format!("; {} requests failed, of the last it was said: {last}", condition.device_errors);
    }
    if condition.wrong_blocks > 0 {
        text += &format!(
            "; ALARM: {} reads found blocks that are not what was last written there",
            condition.wrong_blocks
        );
    }
    if condition.adopted_blocks > 0 {
        text += &format!(
            "; {} blocks did not match their tags and were taken as they are: they may have been in flight when power or process \
             failed; if the volume was closed in order, this is an ALARM: somebody has changed them",
            condition.adopted_blocks
        );
    }
    text
}

/// The state of an exposed volume's key, and its meaning.
fn lease(key: &KeyStatus) -> String {
    let KeyStatus { provider, key, lease } = key;
    let since = utc(lease.since_unix_seconds);
    let why =
        lease.reason.as_ref().map(|reason| format!(": {}", without_numbers(reason))).unwrap_or_default();
    let expired = if lease.expired { "; its time is over: replace it with 'volume rekey --kek'" } else { "" };
    match lease.state {
        LeaseState::Held => format!("held since {since}{expired}"),
        LeaseState::Outage => {
            format!("OUTAGE since {since}{why}; the key is held on, and the volume served{expired}")
        }
        LeaseState::Waiting => format!(
            "WAITING since {since} for key {key} of key provider {provider}{why}; a worker that dies is not replaced before it \
             is back"
        ),
        LeaseState::Revoked { how } => format!(
            "REVOKED: the key was {how}, which was noticed {since}; a worker that dies is not replaced, and nobody opens \
             the volume with it any more{}",
            match how {
                RevokedHow::Compromised => "; move the volume to another key with 'volume rekey --kek'",
                RevokedHow::Destroyed => ": copy away what is needed while it is served",
            }
        ),
    }
}

impl InfoArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let described = describe(&self.path)?;
        self.freshness.verify(&self.path, &described.descriptor)?;
        let mut authenticated = false;
        if self.key.are_given() {
            let key = self.key.for_volume(&self.path, &described.descriptor, self.freshness.expect_kek)?;
            let findings = check(&self.path, key.kek())?;
            if let Some(error) = findings.into_iter().find(|finding| finding.severity == Severity::Error) {
                return Err(CliError::Unsound(error.message));
            }
            authenticated = key.kek().is_some();
        }
        let file_system = described.file_system;
        let datastore = DatastoreFacts {
            file_system: file_system.kind.to_string(),
            total_bytes: file_system.total_bytes,
            available_bytes: file_system.available_bytes,
        };
        // `check` reports a log that cannot be read.
        let log = describe_log(&self.path).unwrap_or(None);
        let descriptor = &described.descriptor;
        let chain = descriptor.chain().map(|layer| ChainLayer {
            layer_id: layer.id.to_string(),
            size_bytes: descriptor.layer_size(layer).bytes(),
        });
        let content = |space: &ViewSpace| ContentFacts {
            snapshot: match space.view {
                View::Present => None,
                View::Snapshot(id) => descriptor.snapshot(id).map(|snapshot| snapshot.name.clone()),
            },
            logical_bytes: space.logical.bytes(),
            committed_bytes: space.committed_bytes,
            unshared_bytes: space.unshared_bytes,
        };
        let contents = described.space.views.iter().map(content).collect();
        let (volume, chain) = (VolumeFacts::from(&described), chain.collect());
        let snapshot = volume.exposure.as_ref().and_then(|_| statistics_of(&self.path, Peer::Trusted));
        let statistics = snapshot.as_ref().map(StatisticsFacts::from);
        output.answer(&Info { volume, chain, contents, log, authenticated, datastore, statistics })
    }
}
