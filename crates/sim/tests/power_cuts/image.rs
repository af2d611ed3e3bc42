//! What a power cut has left, opened and compared with what was promised.

use std::fmt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use strongroom_datastore::file::*;
use strongroom_io::{Disk, Io, IoError, Plain, Request, Thread};
use strongroom_memory::GuestSlice;
use strongroom_sim::SimFs;
use strongroom_types::{Extent, SECTOR_BYTES};
use strongroom_worker::stack::assemble;

use super::history::{Allowed, Bench, History, Sort, options};
use super::oracle::{Event, Oracle, Verdict};

/// A broken promise, and how to see it again.
#[derive(Debug)]
pub struct Wrong {
    pub what: String,
    pub sector: Option<usize>,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

fn wrong(what: impl Into<String>) -> Wrong {
    Wrong { what: what.into(), sector: None }
}

/// Looks at all that is there, and says how the volume fits; `None` where it is rightly absent.
pub fn check_image(
    bench: &Bench,
    fs: &SimFs,
    seed: u64,
    sort: Sort,
    allowed: &Allowed,
    oracle: &Oracle,
) -> Result<Option<Verdict>, Wrong> {
    let datastore = Path::new("/ds");
    let mut found = None;
    if fs.is_directory(datastore) {
        let listed = list_on(fs, datastore).map_err(|error| wrong(format!("the datastore: {error}")))?;
        for entry in listed {
            let path = entry.path().to_owned();
            let is_rest = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            match entry {
                _ if is_rest => delete_rest(fs, &path)?,
                ListedVolume::Volume(_) if !allowed.paths.contains(&path) => {
                    return Err(wrong(format!("{} should not be there", path.display())));
                }
                ListedVolume::Volume(_) if found.is_some() => {
                    return Err(wrong("it is there under both names"));
                }
                ListedVolume::Volume(_) => found = Some(path),
                ListedVolume::Broken { .. } if allowed.remains => delete_rest(fs, &path)?,
                ListedVolume::Broken { reason, .. } => {
                    return Err(wrong(format!("{} is broken: {reason}", path.display())));
                }
            }
        }
    }
    match found {
        None if allowed.absent => Ok(None),
        None => Err(wrong("the volume is gone")),
        Some(path) => check_volume(bench, fs, seed, sort, &path, allowed, oracle).map(Some),
    }
}

/// What is left of an interrupted creation or deletion can be deleted.
fn delete_rest(fs: &SimFs, path: &Path) -> Result<(), Wrong> {
    match delete_on(fs, path, Duration::ZERO) {
        Ok(()) => Ok(()),
        Err(error) => Err(wrong(format!("what is left cannot be deleted: {error}"))),
    }
}

fn check_volume(
    bench: &Bench,
    fs: &SimFs,
    seed: u64,
    sort: Sort,
    path: &Path,
    allowed: &Allowed,
    oracle: &Oracle,
) -> Result<Verdict, Wrong> {
    let protection = sort.protection(&bench.kek);
    let volume = match open_on(fs, path, &options(protection)) {
        Ok(volume) => volume,
        Err(error) => return Err(wrong(format!("it does not open: {error}"))),
    };
    let size_bytes = volume.descriptor().size_bytes.bytes();
    if !allowed.sizes.contains(&size_bytes) {
        return Err(wrong(format!("it has {size_bytes} bytes instead of {:?}", allowed.sizes)));
    }
    if seed.is_multiple_of(8) {
        let kek = sort.encrypted.then_some(&bench.kek);
        let findings = check_on(fs, path, kek).map_err(|error| wrong(format!("its check: {error}")))?;
        if let Some(finding) = findings.iter().find(|finding| finding.severity == Severity::Error) {
            return Err(wrong(finding.message.clone()));
        }
    }
    let disk = assemble(volume).map_err(|error| wrong(error.to_string()))?;
    let content =
        read_all(bench, fs, seed, &*disk).map_err(|error| wrong(format!("it cannot be read: {error}")))?;
    oracle.check(&content).map_err(|sector| Wrong {
        what: format!(
            "sector {sector} shows {:02x?}; allowed: {}",
            &content[sector * SECTOR_BYTES as usize..][..8],
            oracle.describe(sector)
        ),
        sector: Some(sector),
    })
}

/// Everything that a disk of at most one transfer holds.
pub fn read_all(bench: &Bench, fs: &SimFs, seed: u64, disk: &dyn Disk<Plain>) -> Result<Vec<u8>, IoError> {
    let size_bytes = disk.limits().size_bytes;
    let thread = Thread { pool: bench.pool.clone(), reactor: Rc::new(fs.reactor(seed)?) };
    let mut channel = disk.open(&thread, 1)?;
    let out_of_memory = IoError::from_errno(12);
    let into = GuestSlice::from_buffer(bench.memory.take(size_bytes as usize).ok_or(out_of_memory)?);
    let request = Request::Read { extent: Extent::between(0, size_bytes), into };
    channel.submit(Io { tag: 1, request });
    let mut done = Vec::new();
    while done.is_empty() {
        channel.kick();
        channel.poll(&mut done);
    }
    let done = done.remove(0);
    done.result?;
    let buffer = done.memory.and_then(GuestSlice::into_buffer).ok_or(out_of_memory)?;
    Ok(buffer.bytes().to_vec())
}

/// What is known at each moment of a history, told in order.
pub struct Knowledge<'a> {
    history: &'a History,
    pub oracle: Oracle,
    events: usize,
    allowed: usize,
}

impl<'a> Knowledge<'a> {
    pub fn new(history: &'a History) -> Self {
        let oracle = history.first.clone();
        Self { history, oracle, events: 0, allowed: 0 }
    }

    /// Goes on to a moment, which is not before the last.
    pub fn go_to(&mut self, moment: usize) -> &'a Allowed {
        let events = &self.history.log.events;
        while let Some((at, event)) = events.get(self.events)
            && *at <= moment
        {
            self.oracle.apply(event);
            self.events += 1;
        }
        let allowed = &self.history.allowed;
        while allowed.get(self.allowed + 1).is_some_and(|(at, _)| *at <= moment) {
            self.allowed += 1;
        }
        &allowed[self.allowed].1
    }

    /// What happened so far to a sector's block, for a person: the least history that shows what is wrong.
    pub fn tell(&self, sector: Option<usize>) -> String {
        let Some(sector) = sector else { return String::new() };
        let block = Some(sector / 8);
        let events = self.history.log.events[..self.events].iter();
        let touching = events.filter(|(_, event)| match event {
            Event::Submitted { effects, .. } => effects.iter().any(|(other, _)| Some(*other) == block),
            Event::Ended { .. }
            | Event::FlushSubmitted { .. }
            | Event::FlushEnded { .. }
            | Event::Resized { .. } => true,
        });
        let mut requests = std::collections::BTreeSet::new();
        let mut told = String::new();
        for (moment, event) in touching {
            let line = match event {
                Event::Submitted { id, effects, durable } => {
                    requests.insert(*id);
                    let found = effects.iter().find(|(other, _)| Some(*other) == block);
                    let effect = found.map(|(_, effect)| effect);
                    let effect = match effect {
                        Some(super::oracle::Effect::Written(sectors)) => {
                            format!(
                                "writes sectors {:?}",
                                sectors.iter().map(|(at, _)| at).collect::<Vec<_>>()
                            )
                        }
                        _ => "makes it nothing".to_owned(),
                    };
                    format!("request {id} {effect}, durable {durable}")
                }
                Event::Ended { id, succeeded } if requests.contains(id) => {
                    format!("request {id} ended, {succeeded}")
                }
                Event::Ended { .. } => continue,
                Event::FlushSubmitted { id } => format!("flush {id}"),
                Event::FlushEnded { id, succeeded } => format!("flush {id} ended, {succeeded}"),
                Event::Resized { blocks } => format!("grown to {blocks} blocks"),
            };
            told += &format!("  moment {moment}: {line}\n");
        }
        told
    }
}
