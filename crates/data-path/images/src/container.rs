//! Recognises files that hold a disk in a form that is not imported.
//!
//! Each is recognised by its mark, so that the error explains what the file is and how to convert
//! it to a supported image. Otherwise a person would be asked for a format, and might copy the
//! container's own bytes into the disk.

use std::io;
use std::path::Path;

use strongroom_types::shell_word;

use super::place::{ImageBytes, read_up_to};

/// A kind of file that holds disks and is not imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Container {
    /// What a person calls it, with its article.
    name: &'static str,
    mark: Mark,
    next: Next,
    on_disks: OnDisks,
}

/// The place and value of a file's mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// At a byte from the start.
    At(usize, &'static [u8]),
    /// As the start of the last 512 bytes.
    Trailer(&'static [u8]),
}

/// How the file is converted to a supported image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// By `qemu-img`, under this name of the format.
    Convert(&'static str),
    /// By a command before the file's name, which leaves a file with an image.
    Unpack(&'static str),
    /// By these commands, in which `{}` is the file's name.
    Said(&'static str),
}

/// Whether ordinary whole disks, which guests write, may begin or end like this too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnDisks {
    Often,
    Rarely,
}

/// How much of a file's start has all marks but that of ISO 9660.
const START_BYTES: usize = 512;
const TRAILER_BYTES: u64 = 512;
/// Where the first volume descriptor of ISO 9660 has its mark, after sixteen sectors and its type.
const ISO_MARK_AT: usize = 16 * 2048 + 1;

const fn container(name: &'static str, mark: Mark, next: Next) -> Container {
    Container { name, mark, next, on_disks: OnDisks::Rarely }
}

const fn of_disks(name: &'static str, mark: Mark, next: Next) -> Container {
    Container { name, mark, next, on_disks: OnDisks::Often }
}

/// All known kinds. If two match, the first counts.
const CONTAINERS: [Container; 23] = [
    container("a VirtualBox disk image (VDI)", Mark::At(64, b"\x7f\x10\xda\xbe"), Next::Convert("vdi")),
    container("a Virtual PC disk image (VHD)", Mark::At(0, b"conectix"), Next::Convert("vpc")),
    container("a Virtual PC disk image (VHD)", Mark::Trailer(b"conectix"), Next::Convert("vpc")),
    container("a QED image", Mark::At(0, b"QED\0"), Next::Convert("qed")),
    container("a qcow image of version 1", Mark::At(0, b"QFI\xfb\0\0\0\x01"), Next::Convert("qcow")),
    container("a Parallels disk image", Mark::At(0, b"WithoutFreeSpace"), Next::Convert("parallels")),
    container("a Parallels disk image", Mark::At(0, b"WithouFreSpacExt"), Next::Convert("parallels")),
    container("a VMware disk image of the old COWD kind", Mark::At(0, b"COWD"), Next::Convert("vmdk")),
    container(
        "the extent of a VMware snapshot (SEsparse)",
        Mark::At(0, b"\xbe\xba\xfe\xca\0\0\0\0"),
        Next::Said(
            "convert the image that it belongs to, in its directory, with: qemu-img convert -f vmdk -O qcow2 WEB1.vmdk \
             WEB1.qcow2",
        ),
    ),
    container("an Apple disk image (DMG)", Mark::Trailer(b"koly"), Next::Convert("dmg")),
    of_disks(
        "a disk that is encrypted with LUKS",
        Mark::At(0, b"LUKS\xba\xbe"),
        Next::Said("open it with: cryptsetup open {} plain, and import /dev/mapper/plain"),
    ),
    container(
        "a Proxmox backup (VMA)",
        Mark::At(0, b"VMA\0"),
        Next::Said("unpack it on a Proxmox host with: vma extract {} DIRECTORY, and import the disks in it"),
    ),
    container(
        "an archive (tar, which an OVA is)",
        Mark::At(257, b"ustar"),
        Next::Said("name its content with: tar tf {}, unpack its disk with: tar xf {} DISK, and import that"),
    ),
    container("compressed with gzip", Mark::At(0, b"\x1f\x8b\x08"), Next::Unpack("gunzip --keep")),
    container("compressed with xz", Mark::At(0, b"\xfd7zXZ\0"), Next::Unpack("unxz --keep")),
    container("compressed with zstd", Mark::At(0, b"\x28\xb5\x2f\xfd"), Next::Unpack("unzstd")),
    container("compressed with bzip2", Mark::At(0, b"BZh"), Next::Unpack("bunzip2 --keep")),
    container("compressed with lz4", Mark::At(0, b"\x04\x22\x4d\x18"), Next::Unpack("unlz4")),
    container("compressed with lzop", Mark::At(0, b"\x89LZO\0\r\n\x1a\n"), Next::Unpack("lzop -d")),
    container("a ZIP archive", Mark::At(0, b"PK\x03\x04"), Next::Unpack("unzip")),
    container("a 7z archive", Mark::At(0, b"7z\xbc\xaf\x27\x1c"), Next::Unpack("7z x")),
    container(
        "a Windows image (WIM), whose files are no disk",
        Mark::At(0, b"MSWIM\0\0\0"),
        Next::Said(
            "install Windows from its medium, or import the disk of a machine that it is installed on",
        ),
    ),
    of_disks(
        "the image of a CD or DVD (ISO 9660)",
        Mark::At(ISO_MARK_AT, b"CD001"),
        Next::Said("install a VM from it, or import the disk of a machine that it is installed on"),
    ),
];

impl Container {
    /// The kind that `image` is marked as; `None` also if it cannot be read.
    pub fn of(image: &dyn ImageBytes) -> Option<Self> {
        let mut start = [0; START_BYTES];
        let length = read_up_to(image, 0, &mut start).ok()?;
        let start = &start[..length];
        let trailer = trailer(image).unwrap_or([0; TRAILER_BYTES as usize]);
        let is_marked = |container: &&Self| match container.mark {
            Mark::Trailer(mark) => trailer.starts_with(mark),
            Mark::At(at, mark) if at < START_BYTES => {
                start.get(at..).is_some_and(|rest| rest.starts_with(mark))
            }
            Mark::At(at, mark) => {
                let mut found = vec![0; mark.len()];
                read_up_to(image, at as u64, &mut found).is_ok() && found == mark
            }
        };
        CONTAINERS.iter().find(is_marked).copied()
    }

    /// Whether raw images of whole disks often have this mark.
    pub fn is_often_on_disks(self) -> bool {
        self.on_disks == OnDisks::Often
    }

    /// Explains what it is, and what to do with the file at `path`.
    pub fn advice(self, path: &Path) -> String {
        let file = shell_word(&path.to_string_lossy());
        let next = match self.next {
            Next::Convert(driver) => {
                let to = shell_word(&path.with_extension("qcow2").to_string_lossy());
                format!("convert it first with: qemu-img convert -f {driver} -O qcow2 {file} {to}")
            }
            Next::Unpack(command) => format!("unpack it first with: {command} {file}"),
            Next::Said(commands) => commands.replace("{}", &file),
        };
        format!("is {}, which is not imported; {next}", self.name)
    }
}

fn trailer(image: &dyn ImageBytes) -> io::Result<[u8; TRAILER_BYTES as usize]> {
    let end = image.size_bytes()?;
    let mut trailer = [0; TRAILER_BYTES as usize];
    read_up_to(image, end.saturating_sub(TRAILER_BYTES), &mut trailer)?;
    Ok(trailer)
}
