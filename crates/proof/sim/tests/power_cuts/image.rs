//! Opens the state after a power cut, and compares it with the promises.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use strongroom_datastore::file::*;
use strongroom_io::{Disk, Io, IoError, Plain, Request, Thread};
use strongroom_memory::GuestSlice;
use strongroom_sim::SimFs;
use strongroom_types::Extent;
use strongroom_worker::stack::assemble;

use super::history::{DATASTORE, options};
use super::knowledge::{Allowed, Bench, Knowledge, NAMES, Sort};
use super::oracle::Verdict;

/// A volume after a cut.
#[derive(Clone, Copy)]
pub struct Found {
    pub name: &'static str,
    pub layers: usize,
    pub verdict: Verdict,
}

/// Checks the whole image, and returns the volume's verdict; `None` if it is rightly absent.
pub fn check_image(
    bench: &Bench,
    fs: &SimFs,
    seed: u64,
    sort: Sort,
    allowed: &Allowed,
    known: &Knowledge<'_>,
) -> Result<Option<Found>, String> {
    let datastore = Path::new(DATASTORE);
    let mut found = None;
    if fs.is_directory(datastore) {
        let listed = list_on(fs, datastore).map_err(|error| format!("the datastore: {error}"))?;
        for entry in listed {
            let path = entry.path().to_owned();
            let name = NAMES.into_iter().find(|name| path.ends_with(name));
            match (entry, name) {
                (ListedVolume::Volume(_), Some(name)) if !allowed.names.contains(&name) => {
                    return Err(format!("{name} should not be there"));
                }
                (ListedVolume::Volume(_), Some(_)) if found.is_some() => {
                    return Err("it is there under both names".to_owned());
                }
                (ListedVolume::Volume(_), Some(name)) => found = Some(name),
                (_, None) => delete_rest(fs, &path)?,
                (ListedVolume::Broken { .. }, _) if allowed.remains => delete_rest(fs, &path)?,
                (ListedVolume::Broken { reason, .. }, Some(name)) => {
                    return Err(format!("{name} is broken: {reason}"));
                }
            }
        }
    }
    match found {
        None if allowed.absent => Ok(None),
        None => Err("the volume is gone".to_owned()),
        Some(name) => {
            let (layers, verdict) =
                check_volume(bench, fs, seed, sort, &datastore.join(name), allowed, known)?;
            Ok(Some(Found { name, layers, verdict }))
        }
    }
}

/// Deletes the leftovers of an interrupted creation or deletion.
fn delete_rest(fs: &SimFs, path: &Path) -> Result<(), String> {
    delete_on(fs, path, Duration::ZERO).map_err(|error| format!("what is left cannot be deleted: {error}"))
}

fn check_volume(
    bench: &Bench,
    fs: &SimFs,
    seed: u64,
    sort: Sort,
    path: &Path,
    allowed: &Allowed,
    known: &Knowledge<'_>,
) -> Result<(usize, Verdict), String> {
    let protection = sort.protection(&bench.kek);
    let volume =
        open_on(fs, path, &options(protection)).map_err(|error| format!("it does not open: {error}"))?;
    let size_bytes = volume.descriptor().size_bytes.bytes();
    if !allowed.sizes.contains(&size_bytes) {
        return Err(format!("it has {size_bytes} bytes instead of {:?}", allowed.sizes));
    }
    if seed.is_multiple_of(8) {
        let kek = sort.encrypted.then_some(&bench.kek);
        let findings = check_on(fs, path, kek).map_err(|error| format!("its check: {error}"))?;
        if let Some(finding) = findings.into_iter().find(|finding| finding.severity == Severity::Error) {
            return Err(finding.message);
        }
    }
    let layers = volume.descriptor().layers.len();
    let disk = assemble(volume).map_err(|error| error.to_string())?;
    let content = read_all(bench, fs, seed, &*disk).map_err(|error| format!("it cannot be read: {error}"))?;
    let verdict = known.oracle.check(&content).map_err(|sector| known.tell(sector, &content))?;
    Ok((layers, verdict))
}

/// The whole content of a disk of at most one transfer.
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
