//! Makes a backup: whole and verified, or not at all.
//!
//! The file is written under a temporary name, made durable, read back and compared, and only then
//! gets its name. Last, the server records it, so that a recorded backup exists. A crash leaves no
//! file, a `.partial` one, or a whole one.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use strongroom_files::{PRIVATE_MODE, directory_of, sync_directory};
use strongroom_memory::secret::SecretBytes;

use super::archive::{ArchiveKey, ArchiveReader, ArchiveWriter, Broken};
use super::custodian::Custody;
use super::error::BackupError;
use super::header::{self, BackupId, Header, ShareHolder};
use super::last::LastBackup;
use super::records::{Manifest, RecordReader, RecordWriter};
use super::share::{BACKUP_KEY_BYTES, Share, combine, split};
use super::{BackupSource, Snapshot};

/// The steps between which a crash may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Start,
    WriteRecord,
    MakeDurable,
    ReadBack,
    PutInPlace,
    MakeNameDurable,
    Remember,
    Done,
}

/// Backs `source` up into a new file at `path` that `custody` can open, and records it in
/// `state_directory`.
///
/// # Errors
/// [`BackupError::Exists`]; [`BackupError::Source`]; [`BackupError::System`];
/// [`BackupError::ReadBack`]. Then there is no backup, and none is recorded.
pub fn back_up(
    source: &dyn BackupSource,
    custody: &Custody,
    path: &Path,
    state_directory: &Path,
) -> Result<LastBackup, BackupError> {
    back_up_observed(source, custody, path, state_directory, &mut |_| {})
}

/// The same without recording it, for a backup that must first be moved to a safe place, or is
/// recorded elsewhere. Afterwards call [`LastBackup::remember`].
///
/// # Errors
/// As [`back_up`].
pub fn write(source: &dyn BackupSource, custody: &Custody, path: &Path) -> Result<LastBackup, BackupError> {
    write_observed(source, custody, path, &mut |_| {})
}

/// As [`back_up`]; `before` is called before each step.
pub(super) fn back_up_observed(
    source: &dyn BackupSource,
    custody: &Custody,
    path: &Path,
    state_directory: &Path,
    before: &mut dyn FnMut(Step),
) -> Result<LastBackup, BackupError> {
    let last = write_observed(source, custody, path, before)?;
    before(Step::Remember);
    last.remember(state_directory)?;
    before(Step::Done);
    Ok(last)
}

fn write_observed(
    source: &dyn BackupSource,
    custody: &Custody,
    path: &Path,
    before: &mut dyn FnMut(Step),
) -> Result<LastBackup, BackupError> {
    before(Step::Start);
    let partial = partial_of(path);
    if path.symlink_metadata().is_ok() {
        return Err(BackupError::Exists { path: path.to_owned() });
    }
    let snapshot = source.snapshot().map_err(BackupError::Source)?;
    let key = SecretBytes::random(BACKUP_KEY_BYTES)?;
    let header = header_for(&snapshot, custody, &key)?;
    let made = write_file(&header, &key, snapshot, &partial, before).and_then(|manifest| {
        before(Step::ReadBack);
        read_back(&partial, &key, &manifest)?;
        before(Step::PutInPlace);
        put_in_place(&partial, path)?;
        Ok(manifest)
    });
    let manifest = made.inspect_err(|_| {
        // Its name does not pass for a backup's, and the next backup overwrites it.
        let _ = fs::remove_file(&partial);
    })?;
    before(Step::MakeNameDurable);
    sync_directory(directory_of(path)).map_err(system("make durable", path))?;
    Ok(LastBackup::new(&header, manifest.counts))
}

fn header_for(snapshot: &Snapshot<'_>, custody: &Custody, key: &SecretBytes) -> Result<Header, BackupError> {
    let id = BackupId::new();
    let custodians = custody.custodians();
    // At most CUSTODIANS_MAX, which fits.
    let shares = split(key, id, custody.threshold(), custodians.len() as u8)?;
    check_split(&shares, custody.threshold(), key)?;
    let mut holders = Vec::with_capacity(custodians.len());
    for (custodian, share) in custodians.iter().zip(&shares) {
        holders.push(ShareHolder {
            index: share.index,
            name: custodian.name().clone(),
            key_sha256: custodian.key_sha256(),
            encryption: custodian.encryption(),
            share: custodian.encrypt(&share.encode()?)?,
        });
    }
    Header::new(id, snapshot, custody.threshold(), key, holders)
}

/// Checks that the first and the last M shares give the key, before anyone relies on them.
fn check_split(shares: &[Share], threshold: u8, key: &SecretBytes) -> Result<(), BackupError> {
    let threshold = usize::from(threshold);
    for some in [&shares[..threshold], &shares[shares.len() - threshold..]] {
        if combine(some)? != *key {
            return Err(BackupError::ReadBack { why: "its shares do not give its key".to_owned() });
        }
    }
    Ok(())
}

fn write_file(
    header: &Header,
    key: &SecretBytes,
    snapshot: Snapshot<'_>,
    partial: &Path,
    before: &mut dyn FnMut(Step),
) -> Result<Manifest, BackupError> {
    let failed = system("write", partial);
    let mut line = serde_json::to_vec(header).map_err(|error| failed(error.into()))?;
    line.push(b'\n');
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(PRIVATE_MODE)
        .open(partial)
        .map_err(&failed)?;
    let mut out = BufWriter::new(file);
    out.write_all(&line).map_err(&failed)?;
    let key = ArchiveKey::new(key, header.id, &line)?;
    let mut records = RecordWriter::new(ArchiveWriter::new(&key, out));
    for record in snapshot.records {
        before(Step::WriteRecord);
        let record = record.map_err(BackupError::Source)?;
        if record.kind.content() != header.content {
            return Err(BackupError::Source("it has a record of something else".into()));
        }
        RecordWriter::<File>::check(&record)?;
        records.write(&record).map_err(&failed)?;
    }
    let (out, manifest) = records.finish().map_err(&failed)?;
    before(Step::MakeDurable);
    out.into_inner().map_err(|error| failed(error.into_error()))?.sync_all().map_err(&failed)?;
    Ok(manifest)
}

fn read_back(partial: &Path, key: &SecretBytes, written: &Manifest) -> Result<(), BackupError> {
    let failed = |why: String| BackupError::ReadBack { why };
    let (header, line, file) = header::open(partial).map_err(|error| failed(error.to_string()))?;
    let key = ArchiveKey::new(key, header.id, &line)?;
    let read = RecordReader::new(ArchiveReader::new(&key, file)).read_all(|_| Ok::<(), Broken>(()));
    match read {
        Ok(manifest) if manifest == *written => Ok(()),
        Ok(_) => Err(failed("its manifest is another".to_owned())),
        Err(Broken::System(error)) => Err(failed(error.to_string())),
        Err(Broken::Damaged { offset, why }) => {
            Err(failed(format!("{why}, at byte {}", line.len() as u64 + offset)))
        }
    }
}

pub(super) fn put_in_place(partial: &Path, path: &Path) -> Result<(), BackupError> {
    match rustix::fs::renameat_with(CWD, partial, CWD, path, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => Err(BackupError::Exists { path: path.to_owned() }),
        // Some network file systems do not support renaming without replacing.
        Err(Errno::INVAL | Errno::NOSYS) if path.symlink_metadata().is_err() => {
            fs::rename(partial, path).map_err(system("put in place", path))
        }
        Err(errno) => Err(system("put in place", path)(errno.into())),
    }
}

pub(super) fn partial_of(path: &Path) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

pub(super) fn system(what: &'static str, path: &Path) -> impl Fn(io::Error) -> BackupError {
    let path = path.to_owned();
    move |error| BackupError::System { what, path: path.clone(), error }
}
