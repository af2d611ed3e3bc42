//! Files of the home as JSON that says its format.

use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use strongroom_files::FileError;
use strongroom_keyserver::state::make_directories;

use crate::error::JobError;

/// The longest file that is read, in bytes: a path has 4096, a reason and an id less.
const BYTES_MAX: u64 = 64 * 1024;

/// What every file of the home says first.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// Puts `content` at `path`, in place of what is there, durably. The directory is made if it is
/// missing.
///
/// # Errors
/// [`JobError::Directory`] and [`JobError::File`]; then what was there is there.
pub fn replace(path: &Path, content: &impl Serialize) -> Result<(), JobError> {
    make_directories(strongroom_files::directory_of(path))?;
    let failed =
        |error: io::Error| JobError::File(FileError { action: "write", path: path.to_owned(), error });
    let mut text = serde_json::to_vec_pretty(content).map_err(|error| failed(error.into()))?;
    text.push(b'\n');
    strongroom_files::replace(path, &text).map_err(failed)
}

/// What was put there, if it has this format.
///
/// # Errors
/// Of the file system; [`io::ErrorKind::Other`] with a sentence for another format.
pub fn read<Content: DeserializeOwned>(path: &Path, format: u32) -> io::Result<Content> {
    let text = strongroom_files::read(path, BYTES_MAX)?;
    // First of all: what another format says may not be understood.
    match serde_json::from_slice::<Format>(&text)?.format {
        found if found == format => Ok(serde_json::from_slice(&text)?),
        found => {
            let reason =
                format!("it has format {found}, and this program reads {format}; upgrade the program");
            Err(io::Error::other(reason))
        }
    }
}

/// Removes a file, durably; whether it was there.
///
/// # Errors
/// [`JobError::File`].
pub fn remove(path: &Path) -> Result<bool, JobError> {
    let failed = |error| JobError::File(FileError { action: "remove", path: path.to_owned(), error });
    strongroom_files::remove(path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Note {
        format: u32,
        path: String,
    }

    #[test]
    fn what_a_newer_program_wrote_is_told_by_its_format() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("notes/one.json");
        let note = Note { format: 1, path: "/ds".to_owned() };
        replace(&path, &note).unwrap();
        assert_eq!(read::<Note>(&path, 1).unwrap(), note);
        strongroom_files::replace(&path, br#"{"format":2,"places":["/ds"]}"#).unwrap();
        let told = read::<Note>(&path, 1).unwrap_err().to_string();
        assert!(told.contains("it has format 2, and this program reads 1"), "{told}");
        strongroom_files::replace(&path, &vec![b' '; 1 << 20]).unwrap();
        assert_eq!(read::<Note>(&path, 1).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
