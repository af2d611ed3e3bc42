//! Copies a whole volume's content from and to a file: a pipelined client of a disk on the calling
//! thread.
//!
//! Holes of the file, unallocated runs of the disk, and runs of zeroes are skipped in both
//! directions, because the destination already reads as zeroes there. So the destination must be
//! new.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, SeekFrom, fadvise, seek};
use rustix::io::Errno;
use strongroom_io::{Allocation, Disk, IoError, Plain};
use strongroom_memory::{Buffer, BufferPool, PoolError};
use strongroom_ring::{Ring, RingError};
use strongroom_types::Extent;
use thiserror::Error;

use crate::client::{Client, DEPTH, pieces, take};
use crate::file_writer::FileWriter;

/// The shortest run of zeroes that is worth two transfers instead of one.
const ZERO_RUN_BYTES: usize = 64 << 10;

/// How much of the disk is asked for its allocation at once, so that the answer stays short.
const WINDOW_BYTES: u64 = 1 << 30;

/// The reasons why a transfer ended early.
#[derive(Debug, Error)]
pub enum TransferError {
    /// The volume failed.
    #[error("{0}")]
    Volume(#[source] IoError),
    /// The file failed.
    #[error("{0}")]
    File(#[source] io::Error),
    /// It was asked to stop.
    #[error("interrupted")]
    Stopped,
    /// There is no event loop.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// There is no memory for transfers.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// Reports the progress of a transfer, and can stop it.
pub struct Progress<'a> {
    /// Ends the transfer when it is set.
    pub stop: &'a AtomicBool,
    /// Called with the count of bytes that are done.
    pub report: &'a mut dyn FnMut(u64),
}

impl Progress<'_> {
    /// Reports the bytes that are done. Fails if the transfer is to stop.
    pub(crate) fn at(&mut self, bytes: u64) -> Result<(), TransferError> {
        (self.report)(bytes);
        if self.stop.load(Ordering::Relaxed) { Err(TransferError::Stopped) } else { Ok(()) }
    }
}

/// Copies a file or block device of `size_bytes` into a disk that reads as zeroes, and makes it
/// durable.
pub fn import_file(
    file: &File,
    size_bytes: u64,
    disk: &dyn Disk<Plain>,
    progress: &mut Progress<'_>,
) -> Result<(), TransferError> {
    // Only a hint: the kernel reads ahead as it sees fit.
    let _ = fadvise(file, 0, None, Advice::Sequential);
    let mut client = Client::open(disk)?;
    let mut staging = client.take_buffer()?;
    let mut at = 0;
    while let Some(data) = next_data(file, at, size_bytes).map_err(TransferError::File)? {
        for piece in pieces(data) {
            progress.at(piece.offset())?;
            let bytes = &mut staging.bytes_mut()[..piece.length() as usize];
            file.read_exact_at(bytes, piece.offset()).map_err(TransferError::File)?;
            for run in data_runs(bytes) {
                let extent =
                    Extent::between(piece.offset() + run.start as u64, piece.offset() + run.end as u64);
                client.write(extent, &bytes[run])?;
            }
        }
        at = data.end();
    }
    client.flush()?;
    progress.at(size_bytes)
}

/// Copies a disk into a new, empty file, and makes it durable.
pub fn export_file(
    disk: &dyn Disk<Plain>,
    file: &File,
    progress: &mut Progress<'_>,
) -> Result<(), TransferError> {
    let size_bytes = disk.limits().size_bytes;
    file.set_len(size_bytes).map_err(TransferError::File)?;
    let ring = Ring::new(2 * DEPTH)?;
    let mut client = Client::on(Rc::new(ring.clone()), disk, DEPTH)?;
    let (pool, mut writer) = (client.pool().clone(), FileWriter::open(file, &ring)?);
    let mut write = |extent, read| write_out(&mut writer, &pool, extent, read);
    each_piece_of_data(disk, |piece| {
        progress.at(piece.offset())?;
        client.read(piece, &mut write)
    })?;
    client.settle(0, &mut write)?;
    writer.settle(0)?;
    file.sync_all().map_err(TransferError::File)?;
    progress.at(size_bytes)
}

/// Copies a disk into another one that reads as zeroes and is at least as large, and makes it
/// durable.
pub fn copy_disk(
    from: &dyn Disk<Plain>,
    into: &dyn Disk<Plain>,
    progress: &mut Progress<'_>,
) -> Result<(), TransferError> {
    let size_bytes = from.limits().size_bytes;
    let (mut reader, mut writer) = (Client::open(from)?, Client::open(into)?);
    let mut write = |extent: Extent, read: Buffer| {
        data_runs(read.bytes()).try_for_each(|run| {
            let start = extent.offset() + run.start as u64;
            writer.write(Extent::between(start, start + run.len() as u64), &read.bytes()[run])
        })
    };
    each_piece_of_data(from, |piece| {
        progress.at(piece.offset())?;
        reader.read(piece, &mut write)
    })?;
    reader.settle(0, &mut write)?;
    writer.flush()?;
    progress.at(size_bytes)
}

/// Calls `each` with the pieces of a disk that may hold data, in order.
pub(crate) fn each_piece_of_data(
    disk: &dyn Disk<Plain>,
    mut each: impl FnMut(Extent) -> Result<(), TransferError>,
) -> Result<(), TransferError> {
    let size_bytes = disk.limits().size_bytes;
    for window in 0..size_bytes.div_ceil(WINDOW_BYTES) {
        let window = Extent::between(window * WINDOW_BYTES, size_bytes.min((window + 1) * WINDOW_BYTES));
        let mut data = Vec::new();
        let found = disk.allocation(window, &mut |extent, allocation| {
            if allocation == Allocation::Data {
                data.push(extent.intersection(window));
            }
            true
        });
        found.map_err(TransferError::Volume)?;
        data.into_iter().flat_map(pieces).try_for_each(&mut each)?;
    }
    Ok(())
}

/// Writes the runs of data in a buffer that was read; without a copy if all of it is data.
fn write_out(
    writer: &mut FileWriter<'_>,
    pool: &BufferPool,
    extent: Extent,
    read: Buffer,
) -> Result<(), TransferError> {
    let is_whole = data_runs(read.bytes()).next() == Some(0..read.len());
    if is_whole {
        return writer.write(extent, read);
    }
    data_runs(read.bytes()).try_for_each(|run| {
        let start = extent.offset() + run.start as u64;
        let mut copy = take(pool, run.len())?;
        copy.bytes_mut().copy_from_slice(&read.bytes()[run.clone()]);
        writer.write(Extent::between(start, start + run.len() as u64), copy)
    })
}

/// The next run of data of a file from `at` on, cut to its first `size_bytes`. A file that cannot
/// report holes is all data.
fn next_data(file: &File, at: u64, size_bytes: u64) -> io::Result<Option<Extent>> {
    if at >= size_bytes {
        return Ok(None);
    }
    let start = match seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // Block devices do not report holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some(Extent::between(at, size_bytes))),
        Err(errno) => return Err(errno.into()),
    };
    let end = seek(file, SeekFrom::Hole(start))?.min(size_bytes);
    let data = Extent::between(start.max(at), end);
    Ok((!data.is_empty()).then_some(data))
}

/// The runs of `bytes` that hold data, without all-zero pieces of [`ZERO_RUN_BYTES`], counted from
/// the start.
pub(crate) fn data_runs(bytes: &[u8]) -> impl Iterator<Item = std::ops::Range<usize>> {
    let chunks = bytes.len().div_ceil(ZERO_RUN_BYTES);
    let range = |chunk: usize| chunk * ZERO_RUN_BYTES..bytes.len().min((chunk + 1) * ZERO_RUN_BYTES);
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = (at..chunks).find(|chunk| !is_zero(&bytes[range(*chunk)]))?;
        let end = (start..chunks).find(|chunk| is_zero(&bytes[range(*chunk)])).unwrap_or(chunks);
        at = end;
        Some(range(start).start..range(end - 1).end)
    })
}

fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<64>();
    words.iter().all(|word| *word == [0; 64]) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use strongroom_datastore::file::{
        Access, AddLayerOptions, CreateOptions, DatastoreError, NewSnapshot, OpenOptions, Protection,
        Provisioning, create, create_snapshot, delete_snapshot, describe, open, open_snapshot,
    };
    use strongroom_keys::{Kek, KekSource};
    use strongroom_memory::secret::SecretBytes;
    use strongroom_types::{SnapshotId, VolumeSize};

    use super::*;
    use crate::merge::{MergeError, merge_next};
    use crate::stack::{assemble, assemble_destaged};

    const SIZE_BYTES: u64 = (5 << 20) + 512;

    fn kek() -> Kek {
        KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [7; 32]).unwrap()).unwrap()
    }

    fn volume(path: &Path, protection: Protection<'_>) {
        let size = VolumeSize::new(SIZE_BYTES).unwrap();
        create(
            path,
            &CreateOptions {
                size,
                provisioning: Provisioning::Thin,
                protection,
                log_bytes: None,
                integrity: None,
            },
        )
        .unwrap();
    }

    fn disk(path: &Path, protection: Protection<'_>, access: Access) -> std::sync::Arc<dyn Disk<Plain>> {
        let options =
            OpenOptions { protection, access, lock_wait: Duration::from_secs(10), least_generation: 0 };
        assemble_destaged(open(path, &options).unwrap()).unwrap()
    }

    /// Data at odd offsets, long runs of it, and a last sector that does not fill a block.
    fn source(directory: &Path) -> File {
        let file =
            File::options().read(true).write(true).create_new(true).open(directory.join("source")).unwrap();
        file.set_len(SIZE_BYTES).unwrap();
        file.write_all_at(b"first", 0).unwrap();
        file.write_all_at(&vec![0xA5; 3 << 20], (1 << 20) - 1000).unwrap();
        file.write_all_at(b"last", SIZE_BYTES - 4).unwrap();
        file
    }

    fn round_trip(protection: Protection<'_>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vm1");
        volume(&path, protection);
        let source = source(directory.path());
        let running = AtomicBool::new(false);
        let mut reports = Vec::new();
        let mut progress = Progress { stop: &running, report: &mut |bytes| reports.push(bytes) };
        import_file(&source, SIZE_BYTES, &*disk(&path, protection, Access::ReadWrite), &mut progress)
            .unwrap();
        assert!(reports.is_sorted() && reports.last() == Some(&SIZE_BYTES));
        let described = describe(&path).unwrap();
        let log_bytes = described.descriptor.layers[0].log.map_or(0, |log| log.bytes);
        let allocated = described.space.committed_bytes - log_bytes;
        assert!((3 << 20..4 << 20).contains(&allocated), "{allocated}");

        let copy = directory.path().join("copy");
        let file = File::options().write(true).create_new(true).open(&copy).unwrap();
        let mut progress = Progress { stop: &running, report: &mut |_| {} };
        export_file(&*disk(&path, protection, Access::ReadOnly), &file, &mut progress).unwrap();
        let original = std::fs::read(directory.path().join("source")).unwrap();
        assert!(original == std::fs::read(&copy).unwrap());
    }

    #[test]
    fn an_encrypted_volume_takes_a_file_and_gives_it_back() {
        round_trip(Protection::Encrypted(&kek()));
    }

    #[test]
    fn a_clear_volume_takes_a_file_and_gives_it_back() {
        round_trip(Protection::Unencrypted);
    }

    #[test]
    fn a_snapshot_is_copied_under_another_key_while_its_volume_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let (path, copy) = (directory.path().join("vm1"), directory.path().join("copy"));
        let (own, other) = (
            kek(),
            KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [8; 32]).unwrap()).unwrap(),
        );
        let protection = Protection::Encrypted(&own);
        volume(&path, protection);
        let source = source(directory.path());
        let running = AtomicBool::new(false);
        let mut progress = Progress { stop: &running, report: &mut |_| {} };
        import_file(&source, SIZE_BYTES, &*disk(&path, protection, Access::ReadWrite), &mut progress)
            .unwrap();
        let before = std::fs::read(directory.path().join("source")).unwrap();
        let snapshot = NewSnapshot { id: SnapshotId::random(), name: "before".parse().unwrap() };
        let lock_wait = Duration::from_secs(10);
        let options = AddLayerOptions { protection, log_bytes: None, lock_wait, least_generation: 0 };
        create_snapshot(&path, &snapshot, &options).unwrap();
        let later = NewSnapshot { id: SnapshotId::random(), name: "later".parse().unwrap() };
        create_snapshot(&path, &later, &options).unwrap();

        let served = disk(&path, protection, Access::ReadWrite);
        source.write_all_at(&vec![0x5A; 2 << 20], 1 << 20).unwrap();
        import_file(&source, SIZE_BYTES, &*served, &mut progress).unwrap();
        let options = OpenOptions { protection, access: Access::ReadOnly, lock_wait, least_generation: 0 };
        assert!(open_snapshot(&path, SnapshotId::random(), &options).is_err());
        let kept = assemble(open_snapshot(&path, snapshot.id, &options).unwrap()).unwrap();
        let protection = Protection::Encrypted(&other);
        volume(&copy, protection);
        copy_disk(&*kept, &*disk(&copy, protection, Access::ReadWrite), &mut progress).unwrap();
        let image = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(directory.path().join("image"))
            .unwrap();
        export_file(&*disk(&copy, protection, Access::ReadOnly), &image, &mut progress).unwrap();
        assert!(std::fs::read(directory.path().join("image")).unwrap() == before);

        // Its layers are not merged as long as it is open.
        drop(served);
        let to_change = OpenOptions { access: Access::ReadWrite, lock_wait: Duration::ZERO, ..options };
        delete_snapshot(&path, snapshot.id, &OpenOptions { lock_wait, ..to_change }).unwrap();
        assert!(describe(&path).unwrap().descriptor.merging.is_some(), "the deletion marks the merge");
        let refused = open_snapshot(&path, later.id, &options).unwrap_err();
        assert!(matches!(refused, DatastoreError::Merging { .. }), "{refused}");
        let refused = merge_next(&path, &to_change, &mut progress).unwrap_err();
        assert!(matches!(refused, MergeError::Datastore(DatastoreError::InUse { .. })), "{refused}");
        drop(kept);
        assert!(merge_next(&path, &OpenOptions { lock_wait, ..to_change }, &mut progress).unwrap().is_some());
    }

    #[test]
    fn a_transfer_stops_when_it_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vm1");
        volume(&path, Protection::Unencrypted);
        let stop = AtomicBool::new(false);
        let mut report = |_| stop.store(true, Ordering::Relaxed);
        let mut progress = Progress { stop: &stop, report: &mut report };
        let disk = disk(&path, Protection::Unencrypted, Access::ReadWrite);
        let ended = import_file(&source(directory.path()), SIZE_BYTES, &*disk, &mut progress);
        assert!(matches!(ended, Err(TransferError::Stopped)));
    }

    #[test]
    fn zero_runs_are_left_out() {
        let mut bytes = vec![0; 3 * ZERO_RUN_BYTES + 100];
        assert_eq!(data_runs(&bytes).count(), 0);
        bytes[0] = 1;
        bytes[3 * ZERO_RUN_BYTES + 99] = 1;
        let found: Vec<_> = data_runs(&bytes).collect();
        assert_eq!(found, [0..ZERO_RUN_BYTES, 3 * ZERO_RUN_BYTES..bytes.len()]);
        bytes.fill(1);
        let whole = 0..bytes.len();
        assert!(data_runs(&bytes).eq([whole]));
        assert_eq!(data_runs(&[]).count(), 0);
    }
}
