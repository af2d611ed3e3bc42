//! Determines the format of an image.
//!
//! A raw image has no mark: the guest controls its first bytes, and may have written another
//! format's mark there, to make the next reader open other files. So the format is guessed only if
//! mark and name agree; an explicit format is always accepted:
//!
//! | | marked as qcow2, vmdk or vhdx | marked as a [`Container`] | no mark |
//! |---|---|---|---|
//! | `*.raw`, `*.img`, a block device | must be said | must be said, but raw where disks often bear that mark | raw |
//! | any other name | as marked | refused | must be said |

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use thiserror::Error;

use super::ImageError;
use super::container::Container;
use super::place::{ImageBytes, read_up_to};

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

/// A format, or the request to detect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatChoice {
    /// From the image's name and first bytes, where both agree.
    Auto,
    /// The given format.
    Said(Format),
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 4] = [Self::Raw, Self::Qcow2, Self::Vmdk, Self::Vhdx];

    /// Its name in `qemu-img`.
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
    /// The format of an image, which was opened at `path`.
    pub fn decide(self, image: &dyn ImageBytes, path: &Path) -> Result<Format, ImageError> {
        let said = match self {
            Self::Auto => return guess(image, path),
            Self::Said(Format::Raw) => return Ok(Format::Raw),
            Self::Said(format) => format,
        };
        match Mark::of(image) {
            Mark::Image(format) if format == said => Ok(said),
            Mark::Image(format) => Err(other_format(path, said, format!("it starts as a {format} image"))),
            Mark::Container(container) => Err(not_imported(path, container)),
            Mark::None => Err(other_format(path, said, "it does not start as one".to_owned())),
        }
    }
}

/// The mark of an image.
enum Mark {
    Image(Format),
    Container(Container),
    None,
}

impl Mark {
    fn of(image: &dyn ImageBytes) -> Self {
        let mut start = [0; 32];
        let length = read_up_to(image, 0, &mut start).unwrap_or(0);
        // The first version of qcow has the mark of its successors.
        match (Container::of(image), Format::marked(&start[..length])) {
            (Some(container), _) => Self::Container(container),
            (None, Some(format)) => Self::Image(format),
            (None, None) => Self::None,
        }
    }
}

fn guess(image: &dyn ImageBytes, path: &Path) -> Result<Format, ImageError> {
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let named_raw = image.is_device() || matches!(extension.as_str(), "raw" | "img");
    let unknown = |reason| Err(ImageError::UnknownFormat { path: path.to_owned(), reason });
    match (Mark::of(image), named_raw) {
        (Mark::None, true) => Ok(Format::Raw),
        (Mark::Container(container), true) if container.is_often_on_disks() => Ok(Format::Raw),
        (Mark::Container(container), true) => {
            Err(ImageError::LooksContained { path: path.to_owned(), advice: container.advice(path) })
        }
        (Mark::Container(container), false) => Err(not_imported(path, container)),
        (Mark::Image(format), false) => Ok(format),
        (Mark::Image(format), true) => unknown(format!(
            "it starts as a {format} image, but is named as a raw one, whose guest could have written that"
        )),
        (Mark::None, false) => unknown("it bears no format's mark, and is not named .raw or .img".to_owned()),
    }
}

fn not_imported(path: &Path, container: Container) -> ImageError {
    ImageError::NotImported { path: path.to_owned(), advice: container.advice(path) }
}

fn other_format(path: &Path, format: Format, reason: String) -> ImageError {
    ImageError::OtherFormat { path: path.to_owned(), format, reason }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

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

    fn refused(choice: FormatChoice, name: &str, content: &[u8]) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        choice.decide(&File::open(&path).unwrap(), Path::new(name)).unwrap_err().to_string()
    }

    /// `mark` in a file that is long enough for every mark.
    fn marked(at: usize, mark: &[u8]) -> Vec<u8> {
        let mut content = vec![0; 40_000];
        content[at..at + mark.len()].copy_from_slice(mark);
        content
    }

    #[test]
    fn a_container_is_called_by_its_name_and_never_copied_as_it_is() {
        for (name, content, says) in [
            ("a.vdi", marked(64, b"\x7f\x10\xda\xbe"), "qemu-img convert -f vdi -O qcow2 a.vdi a.qcow2"),
            ("a.vhd", marked(0, b"conectix"), "qemu-img convert -f vpc -O qcow2 a.vhd a.qcow2"),
            ("a.vhd", marked(40_000 - 512, b"conectix"), "qemu-img convert -f vpc -O qcow2 a.vhd a.qcow2"),
            (
                "my disk.qed",
                marked(0, b"QED\0"),
                "qemu-img convert -f qed -O qcow2 'my disk.qed' 'my disk.qcow2'",
            ),
            ("a.qcow", marked(0, b"QFI\xfb\0\0\0\x01"), "qemu-img convert -f qcow -O qcow2 a.qcow a.qcow2"),
            ("a.hds", marked(0, b"WithouFreSpacExt"), "qemu-img convert -f parallels -O qcow2 a.hds a.qcow2"),
            ("a.dmg", marked(40_000 - 512, b"koly"), "qemu-img convert -f dmg -O qcow2 a.dmg a.qcow2"),
            ("a.luks", marked(0, b"LUKS\xba\xbe"), "cryptsetup open a.luks plain"),
            ("a.ova", marked(257, b"ustar\0"), "tar xf a.ova DISK"),
            ("a.vma", marked(0, b"VMA\0"), "vma extract a.vma DIRECTORY"),
            ("a.qcow2.gz", marked(0, b"\x1f\x8b\x08"), "gunzip --keep a.qcow2.gz"),
            ("a.raw.xz", marked(0, b"\xfd7zXZ\0"), "unxz --keep a.raw.xz"),
            ("a.raw.zst", marked(0, b"\x28\xb5\x2f\xfd"), "unzstd a.raw.zst"),
            ("a.iso", marked(0x8001, b"CD001"), "install a VM from it"),
        ] {
            for choice in [FormatChoice::Auto, FormatChoice::Said(Format::Qcow2)] {
                let told = refused(choice, name, &content);
                assert!(told.contains("which is not imported") && told.contains(says), "{name}: {told}");
                assert!(!told.contains("--format"), "{name}: {told}");
            }
            // A caller that declares these to be a disk's bytes is believed.
            assert_eq!(decided(FormatChoice::Said(Format::Raw), name, &content), Some(Format::Raw));
        }
        // A whole disk may be encrypted with LUKS, or be bootable both as a disk and as a DVD.
        for content in [marked(0, b"LUKS\xba\xbe"), marked(0x8001, b"CD001")] {
            assert_eq!(decided(FormatChoice::Auto, "disk.raw", &content), Some(Format::Raw));
        }
        let told = refused(FormatChoice::Auto, "disk.img", &marked(0, b"QED\0"));
        assert!(told.contains("-f qed") && told.contains("whose guest wrote that"), "{told}");
    }

    #[test]
    fn what_is_said_is_believed_but_must_fit() {
        let said = |format, name, content| decided(FormatChoice::Said(format), name, content);
        assert_eq!(said(Format::Raw, "disk.qcow2", b"QFI\xfb"), Some(Format::Raw));
        assert_eq!(said(Format::Qcow2, "disk.img", b"QFI\xfb"), Some(Format::Qcow2));
        assert_eq!(said(Format::Vhdx, "disk.img", b"QFI\xfb"), None);
    }
}
