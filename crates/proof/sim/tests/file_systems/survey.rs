//! Opens the state after a power cut on a mounted file system, and compares it with the promises.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use strongroom_datastore::file::*;
use strongroom_io::{Disk, Io, Plain, Request, TRANSFER_BYTES_MAX, Thread};
use strongroom_memory::GuestSlice;
use strongroom_ring::Ring;
use strongroom_types::Extent;

use super::knowledge::{Allowed, Bench, Knowledge, NAMES, Sort};
use super::life::{DATASTORE, Found, OpenStack};
use super::oracle::Verdict;

/// Checks everything on the file system. `None` if the volume is rightly absent.
pub fn survey(
    bench: &Bench,
    mounted: &Path,
    sort: Sort,
    allowed: &Allowed,
    known: &Knowledge<'_>,
    checks: bool,
) -> Result<Option<(Found, Verdict)>, String> {
    let datastore = mounted.join(DATASTORE);
    let mut found = None;
    let listed = match datastore.is_dir() {
        true => list(&datastore).map_err(|error| format!("the datastore: {error}"))?,
        false => Vec::new(),
    };
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
            // Leftovers of an interrupted creation or deletion can be deleted.
            (ListedVolume::Broken { .. }, name) if name.is_none() || allowed.remains => {
                delete(&path, Duration::ZERO)
                    .map_err(|error| format!("what is left cannot be deleted: {error}"))?;
            }
            (entry, _) => return Err(format!("{entry:?}")),
        }
    }
    match found {
        None if allowed.absent => create_anew(bench, &datastore, sort).map(|()| None),
        None => Err("the volume is gone".to_owned()),
        Some(name) => {
            let path = datastore.join(name);
            if checks {
                check_volume(bench, &path, sort)?;
            }
            let content = read_volume(bench, &path, sort, allowed)?;
            let verdict = known.oracle.check(&content).map_err(|sector| known.tell(sector, &content))?;
            Ok(Some((Found { name, content }, verdict)))
        }
    }
}

/// The name of an absent volume is free, whatever its leftovers.
fn create_anew(bench: &Bench, datastore: &Path, sort: Sort) -> Result<(), String> {
    for name in NAMES {
        create(&datastore.join(name), &bench.create_options(sort, 8192))
            .map_err(|error| format!("created anew: {error}"))?;
    }
    Ok(())
}

fn check_volume(bench: &Bench, path: &Path, sort: Sort) -> Result<(), String> {
    let kek = sort.encrypted.then_some(&bench.kek);
    let findings = check(path, kek).map_err(|error| format!("its check: {error}"))?;
    match findings.into_iter().find(|finding| finding.severity == Severity::Error) {
        Some(finding) => Err(finding.message),
        None => Ok(()),
    }
}

fn read_volume(bench: &Bench, path: &Path, sort: Sort, allowed: &Allowed) -> Result<Vec<u8>, String> {
    let open = OpenStack::open(bench, sort, path).map_err(|error| format!("it does not open: {error}"))?;
    let size_bytes = open.size_bytes();
    if !allowed.sizes.contains(&size_bytes) {
        return Err(format!("it has {size_bytes} bytes instead of {:?}", allowed.sizes));
    }
    read_all(bench, &*open.stack.disk()).map_err(|error| format!("it cannot be read: {error}"))
}

/// The whole content of a disk.
pub fn read_all(bench: &Bench, disk: &dyn Disk<Plain>) -> Result<Vec<u8>, strongroom_io::IoError> {
    let ring = Ring::new(1).unwrap();
    let thread = Thread { pool: bench.pool.clone(), reactor: Rc::new(ring.clone()) };
    let mut channel = disk.open(&thread, 1)?;
    let size_bytes = disk.limits().size_bytes;
    let mut content = Vec::with_capacity(size_bytes as usize);
    while (content.len() as u64) < size_bytes {
        let at = content.len() as u64;
        let extent = Extent::between(at, size_bytes.min(at + u64::from(TRANSFER_BYTES_MAX)));
        let into = GuestSlice::from_buffer(bench.memory.take(extent.length() as usize).unwrap());
        channel.submit(Io { tag: at, request: Request::Read { extent, into } });
        let mut done = Vec::new();
        while done.is_empty() {
            channel.kick();
            ring.wait(Some(Duration::from_millis(100)))?;
            channel.poll(&mut done);
        }
        let done = done.remove(0);
        done.result?;
        content.extend_from_slice(done.memory.and_then(GuestSlice::into_buffer).unwrap().bytes());
    }
    Ok(content)
}
