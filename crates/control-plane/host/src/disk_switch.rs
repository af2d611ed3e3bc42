//! Where a disk is that moves to another datastore while its VM runs: the host's record.
//!
//! ```text
//! hostd: what is switched, durably -> the supervisor: its volume is closed, and its copy complete
//!     -> one word more, durably: that is the decision -> the volume is opened at its new place
//! ```
//!
//! hostd gives the open file to the VM's supervisor, which is the only process that opens the
//! disk's volume, and so the only one that decides. It waits for nobody then. Whoever comes after
//! it, or after hostd, reads the file: with the word the disk is at its new place, without it the
//! disk is where it was.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use strongroom_types::VmId;

use crate::protocol::DiskMove;

/// The format of the file.
const FORMAT: u32 = 1;
/// The longest file, in bytes: two paths.
const BYTES_MAX: u64 = 64 << 10;
/// The word. A file that ends with it is decided, whatever an earlier attempt has left before it.
const MOVED: &[u8] = b"moved\n";

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Begun {
    format: u32,
    vm: VmId,
    moved: DiskMove,
}

/// What the record of a VM says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSwitch {
    /// The move.
    pub moved: DiskMove,
    /// Whether it is decided that the disk is at its new place.
    pub has_moved: bool,
}

/// Reads the record of a VM; `None` if there is none.
///
/// # Errors
/// If it cannot be read, or is not of this VM: where the disk is, is not known then.
pub fn read(path: &Path, vm: VmId) -> io::Result<Option<DiskSwitch>> {
    let text = match strongroom_files::read(path, BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let wrong = |reason: String| io::Error::other(format!("{}: {reason}", path.display()));
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let begun: Begun = serde_json::from_slice(line).map_err(|error| wrong(error.to_string()))?;
    if begun.format != FORMAT {
        return Err(wrong(format!("it is of format {}, this program reads {FORMAT}", begun.format)));
    }
    if begun.vm != vm {
        return Err(wrong(format!("it is of VM {}", begun.vm)));
    }
    Ok(Some(DiskSwitch { moved: begun.moved, has_moved: text[line.len()..].ends_with(MOVED) }))
}

/// Records durably that a switch begins, and returns the file for the one who decides. A record of
/// the same switch is used again: somebody may still have it open.
///
/// # Errors
/// If it cannot be written; [`io::ErrorKind::AlreadyExists`] if it is of another switch, which has
/// not ended.
pub fn begin(path: &Path, vm: VmId, moved: &DiskMove) -> io::Result<File> {
    match read(path, vm)? {
        Some(known) if known.moved.is_of_same_move(moved) => {}
        Some(known) => {
            let message = format!("{}: a switch of {} has not ended", path.display(), known.moved.disk);
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
        }
        None => {
            let begun = Begun { format: FORMAT, vm, moved: moved.clone() };
            let mut text = serde_json::to_vec(&begun).map_err(io::Error::other)?;
            text.push(b'\n');
            strongroom_files::replace(path, &text)?;
        }
    }
    OpenOptions::new().append(true).open(path)
}

/// Decides, durably. After an error nobody knows whether it is decided, apart from whoever reads
/// the record next.
///
/// # Errors
/// If it cannot be written.
pub fn decide(mut record: &File) -> io::Result<()> {
    record.write_all(MOVED)?;
    record.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{DiskPlace, MoveStep};
    use strongroom_types::DatastoreId;

    fn moved(disk: &str) -> DiskMove {
        let to = DiskPlace { datastore: DatastoreId::from_bytes([7; 16]), path: "/srv/fast".into() };
        DiskMove { disk: disk.parse().unwrap(), from: None, to: Some(to), step: MoveStep::Switch }
    }

    #[test]
    fn the_word_decides_and_nothing_shorter() {
        let home = tempfile::tempdir().unwrap();
        let (path, vm) = (home.path().join("vm.json"), VmId::random());
        assert_eq!(read(&path, vm).unwrap(), None);
        let record = begin(&path, vm, &moved("disk1")).unwrap();
        assert!(!read(&path, vm).unwrap().unwrap().has_moved);
        // A process that was killed in the middle.
        (&record).write_all(&MOVED[..3]).unwrap();
        assert!(!read(&path, vm).unwrap().unwrap().has_moved);
        let again = begin(&path, vm, &moved("disk1")).unwrap();
        decide(&again).unwrap();
        let known = read(&path, vm).unwrap().unwrap();
        assert_eq!(known, DiskSwitch { moved: moved("disk1"), has_moved: true });
    }

    /// Otherwise it would decide in a file that nobody reads.
    #[test]
    fn who_has_the_record_open_decides_also_after_it_was_begun_again() {
        let home = tempfile::tempdir().unwrap();
        let (path, vm) = (home.path().join("vm.json"), VmId::random());
        let first = begin(&path, vm, &moved("disk1")).unwrap();
        let _second = begin(&path, vm, &moved("disk1")).unwrap();
        decide(&first).unwrap();
        assert!(read(&path, vm).unwrap().unwrap().has_moved);
    }

    #[test]
    fn what_is_not_understood_is_no_answer() {
        let home = tempfile::tempdir().unwrap();
        let (path, vm) = (home.path().join("vm.json"), VmId::random());
        begin(&path, vm, &moved("disk1")).unwrap();
        assert!(read(&path, VmId::random()).unwrap_err().to_string().contains("it is of VM"));
        let other = begin(&path, vm, &moved("disk2")).unwrap_err();
        assert_eq!(other.kind(), io::ErrorKind::AlreadyExists);
        for text in ["", "{}", r#"{"format":2}"#] {
            std::fs::write(&path, text).unwrap();
            assert!(read(&path, vm).is_err(), "{text}");
        }
    }
}
