//! Which format an image has.
//!
//! A raw image has no mark of its own: its first bytes are a guest's, who may have written another format's mark there
//! to have the next reader follow it to other files. So a guess is made only where mark and name agree, and whoever
//! says the format is believed:
//!
//! | | marked as qcow2, vmdk or vhdx | no mark |
//! |---|---|---|
//! | `*.raw`, `*.img`, a block device | must be said | raw |
//! | any other name | as marked | must be said |

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::str::FromStr;

use thiserror::Error;

use super::ImageError;

/// The format of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The disk's bytes, one after another.
    Raw,
    /// QEMU's format.
    Qcow2,
    /// VMware's format, in one self-contained file.
    Vmdk,
    /// Hyper-V's format.
    Vhdx,
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|format| format.name() == text).ok_or(UnknownFormat)
    }
}

/// No format is called so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("is no format of disk images; these are: raw, qcow2, vmdk, vhdx")]
pub struct UnknownFormat;

/// A format, or the wish to have it found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatChoice {
    /// From the image's name and first bytes, where both agree.
    Auto,
    /// As it is said.
    Said(Format),
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Raw, Self::Qcow2, Self::Vmdk, Self::Vhdx];

    /// As `qemu-img` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
            Self::Vmdk => "vmdk",
            Self::Vhdx => "vhdx",
        }
    }

    /// The format that an image is marked as.
    fn marked(start: &[u8]) -> Option<Self> {
        const MARKS: [(&[u8], Format); 4] = [
            (b"QFI\xfb", Format::Qcow2),
            (b"KDMV", Format::Vmdk),
            (b"# Disk DescriptorFile", Format::Vmdk),
            (b"vhdxfile", Format::Vhdx),
        ];
        MARKS.iter().find(|(mark, _)| start.starts_with(mark)).map(|(_, format)| *format)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FormatChoice {
    /// The format of the image `file`, which was opened at `path`.
    pub fn decide(self, file: &File, path: &Path) -> Result<Format, ImageError> {
        let said = match self {
            Self::Auto => return guess(file, path),
            Self::Said(Format::Raw) => return Ok(Format::Raw),
            Self::Said(format) => format,
        };
        if mark_of(file) == Some(said) {
            return Ok(said);
        }
        let reason = "it does not start as one".to_owned();
        Err(ImageError::OtherFormat { path: path.to_owned(), format: said, reason })
    }
}

fn guess(file: &File, path: &Path) -> Result<Format, ImageError> {
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let device = file.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device());
    let unknown = |reason| Err(ImageError::UnknownFormat { path: path.to_owned(), reason });
    match (mark_of(file), device || matches!(extension.as_str(), "raw" | "img")) {
        (None, true) => Ok(Format::Raw),
        (Some(format), false) => Ok(format),
        (Some(format), true) => unknown(format!(
            "it starts as a {format} image, but is named as a raw one, whose guest could have written that"
        )),
        (None, false) => unknown("it bears no format's mark, and is not named .raw or .img".to_owned()),
    }
}

fn mark_of(file: &File) -> Option<Format> {
    let mut start = [0; 32];
    let length = read_up_to(file, 0, &mut start).ok()?;
    Format::marked(&start[..length])
}

/// Reads until the buffer is full or the file ends.
pub(super) fn read_up_to(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read_at(&mut buffer[length..], offset.saturating_add(length as u64)) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(choice: FormatChoice, name: &str, content: &[u8]) -> Option<Format> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        choice.decide(&File::open(&path).unwrap(), &path).ok()
    }

    #[test]
    fn a_guess_needs_name_and_mark_to_agree() {
        use Format::*;
        for (mark, format) in [
            (&b"QFI\xfb\0\0\0\x03"[..], Qcow2),
            (b"KDMV", Vmdk),
            (b"# Disk DescriptorFile\n", Vmdk),
            (b"vhdxfile", Vhdx),
        ] {
            assert_eq!(decided(FormatChoice::Auto, "disk.qcow2", mark), Some(format));
            assert_eq!(decided(FormatChoice::Auto, "disk", mark), Some(format));
            assert_eq!(decided(FormatChoice::Auto, "disk.raw", mark), None);
            assert_eq!(decided(FormatChoice::Auto, "disk.IMG", mark), None);
        }
        assert_eq!(decided(FormatChoice::Auto, "disk.img", b"\x55\xaa"), Some(Raw));
        assert_eq!(decided(FormatChoice::Auto, "disk.img", b""), Some(Raw));
        assert_eq!(decided(FormatChoice::Auto, "disk.qcow2", b"\x55\xaa"), None);
        assert_eq!(decided(FormatChoice::Auto, "disk", b""), None);
    }

    #[test]
    fn what_is_said_is_believed_but_must_fit() {
        let said = |format, name, content| decided(FormatChoice::Said(format), name, content);
        assert_eq!(said(Format::Raw, "disk.qcow2", b"QFI\xfb"), Some(Format::Raw));
        assert_eq!(said(Format::Qcow2, "disk.img", b"QFI\xfb"), Some(Format::Qcow2));
        assert_eq!(said(Format::Vhdx, "disk.img", b"QFI\xfb"), None);
    }
}
