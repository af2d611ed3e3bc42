//! An image's references to other files.
//!
//! An image from outside can name any file of this machine as its backing file, data file or
//! extent; a program that follows the reference copies that file into the new disk. The sandbox
//! contains no such file, and `qemu-img` is asked afterwards which references it found. But this
//! module checks first, so that the error names the file that the image refers to.

use std::path::Path;

use super::ImageError;
use super::format::Format;
use super::place::{ImageBytes, read_up_to};

/// Where a qcow2 header, its extensions and the backing file's name lie: the first cluster, of at
/// most 2 MiB.
const QCOW2_HEADER_BYTES: usize = 2 << 20;
/// The longest name in a qcow2 image (QEMU, docs/interop/qcow2.txt).
const QCOW2_NAME_BYTES_MAX: usize = 1023;
/// The incompatible feature "external data file".
const QCOW2_DATA_FILE: u64 = 1 << 2;
/// The header extension with the external data file's name.
const QCOW2_DATA_FILE_NAME: u32 = 0x4441_5441;

/// How much of a VMDK's descriptor is read: its text has a kilobyte or two, or a hundred with
/// thousands of extents.
const VMDK_DESCRIPTOR_BYTES_MAX: usize = 256 << 10;
const VMDK_SECTOR_BYTES: u64 = 512;

/// Refuses an image that is encrypted or not self-contained according to its header.
pub fn refuse_references(format: Format, image: &dyn ImageBytes, path: &Path) -> Result<(), ImageError> {
    let unreadable = |error: std::io::Error| other_format(format, path, error);
    match format {
        Format::Raw => Ok(()),
        // A differencing VHDX names its parent in a table that only a full reader finds; qemu-img
        // refuses it.
        Format::Vhdx => Ok(()),
        Format::Qcow2 => {
            let mut header = vec![0; QCOW2_HEADER_BYTES];
            let length = read_up_to(image, 0, &mut header).map_err(unreadable)?;
            qcow2(&header[..length], path)
        }
        Format::Vmdk => vmdk(image, path),
    }
}

/// A qcow2 header (QEMU, docs/interop/qcow2.txt); all numbers are big-endian.
fn qcow2(header: &[u8], path: &Path) -> Result<(), ImageError> {
    let cut = || other_format(Format::Qcow2, path, "its header is cut off");
    let word = |at: usize| header.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
    let long = |at: usize| header.get(at..)?.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    let version = word(4).ok_or_else(cut)?;
    if !(2..=3).contains(&version) {
        return Err(other_format(
            Format::Qcow2,
            path,
            format!("it has version {version}; 2 and 3 are known"),
        ));
    }
    let refers = |name: &[u8], role| {
        let name = String::from_utf8_lossy(&name[..name.len().min(QCOW2_NAME_BYTES_MAX)]).into_owned();
        Err(ImageError::Refers { path: path.to_owned(), name, role })
    };
    let backing_offset = long(8).ok_or_else(cut)?;
    if backing_offset != 0 {
        let length = word(16).ok_or_else(cut)? as usize;
        let name =
            usize::try_from(backing_offset).ok().and_then(|offset| header.get(offset..)).unwrap_or_default();
        return refers(&name[..name.len().min(length)], "its backing file");
    }
    if word(32).ok_or_else(cut)? != 0 {
        return Err(ImageError::Encrypted { path: path.to_owned() });
    }
    if version == 3 && long(72).ok_or_else(cut)? & QCOW2_DATA_FILE != 0 {
        let mut at = word(100).ok_or_else(cut)? as usize;
        // Extensions follow one another, each with its type, its length, and its content up to a
        // multiple of 8 bytes.
        while let (Some(kind), Some(length)) = (word(at), word(at.saturating_add(4))) {
            let content = header.get(at + 8..).unwrap_or_default();
            match kind {
                0 => break,
                QCOW2_DATA_FILE_NAME => {
                    return refers(&content[..content.len().min(length as usize)], "its data file");
                }
                _ => at = at.saturating_add(8).saturating_add((length as usize).next_multiple_of(8)),
            }
        }
        return refers(b"a name that it does not give", "its data file");
    }
    Ok(())
}

/// A VMDK (VMware, "Virtual Disk Format 5.0"): a text that lists extents, alone or inside of a
/// sparse extent whose header has little-endian numbers.
fn vmdk(image: &dyn ImageBytes, path: &Path) -> Result<(), ImageError> {
    let unreadable = |error: std::io::Error| other_format(Format::Vmdk, path, error);
    let mut header = [0; 512];
    let length = read_up_to(image, 0, &mut header).map_err(unreadable)?;
    let header = &header[..length];
    let long = |at: usize| header.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let embedded = header.starts_with(b"KDMV");
    let mut text = vec![0; VMDK_DESCRIPTOR_BYTES_MAX];
    let (offset, limit, capacity) = if embedded {
        let cut = || other_format(Format::Vmdk, path, "its header is cut off");
        let sectors = |at| long(at).map(|sectors| sectors.saturating_mul(VMDK_SECTOR_BYTES)).ok_or_else(cut);
        (sectors(28)?, sectors(36)?, sectors(12)?)
    } else {
        (0, u64::MAX, 0)
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX).min(text.len());
    let length = read_up_to(image, offset, &mut text[..limit]).map_err(unreadable)?;
    let text = String::from_utf8_lossy(&text[..length]);
    let refers =
        |name: &str, role| Err(ImageError::Refers { path: path.to_owned(), name: name.to_owned(), role });
    let lines = || text.split(['\n', '\0']).map(str::trim);
    if let Some(hint) = lines().find_map(|line| line.strip_prefix("parentFileNameHint")) {
        return refers(hint.trim_start_matches([' ', '=']).trim_matches('"'), "its parent");
    }
    let mut extents = lines().filter_map(vmdk_extent);
    // If its header has a capacity, the file itself is the extent, and the only extent line names
    // it.
    match (extents.next(), extents.next()) {
        (Some((_, name)), None) if !embedded || capacity == 0 => refers(name, "its extent"),
        (Some((kind, name)), None) if kind != "SPARSE" => refers(name, "its extent"),
        (Some(_), Some((_, name))) => refers(name, "one of its extents"),
        (Some(_) | None, None) | (None, Some(_)) => Ok(()),
    }
}

/// Type and file name of a line such as `RW 4192256 FLAT "disk-flat.vmdk" 0`.
fn vmdk_extent(line: &str) -> Option<(&str, &str)> {
    let (access, rest) = line.split_once(' ')?;
    if !matches!(access, "RW" | "RDONLY" | "NOACCESS") {
        return None;
    }
    let (_sectors, rest) = rest.trim_start().split_once(' ')?;
    let (kind, rest) = rest.trim_start().split_once(' ')?;
    Some((kind, rest.trim_start().trim_start_matches('"').split('"').next().unwrap_or(rest)))
}

fn other_format(format: Format, path: &Path, reason: impl ToString) -> ImageError {
    ImageError::OtherFormat { path: path.to_owned(), format, reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn qcow2_header() -> Vec<u8> {
        let mut header = vec![0; 1024];
        header[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
        header[103] = 104;
        header
    }

    fn verdict(format: Format, content: &[u8]) -> Result<(), String> {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(content, 0).unwrap();
        refuse_references(format, &file, Path::new("disk")).map_err(|error| error.to_string())
    }

    #[test]
    fn a_lone_qcow2_passes() {
        assert_eq!(verdict(Format::Qcow2, &qcow2_header()), Ok(()));
    }

    #[test]
    fn a_backing_file_is_named() {
        let mut header = qcow2_header();
        header[14..16].copy_from_slice(&512_u16.to_be_bytes());
        header[19] = 11;
        header[512..523].copy_from_slice(b"/etc/shadow");
        let refusal = verdict(Format::Qcow2, &header).unwrap_err();
        assert!(
            refusal.starts_with("disk refers to another file, '/etc/shadow' (its backing file)"),
            "{refusal}"
        );
        // Neither an endless name nor one outside the header causes a crash.
        header[16] = 0xFF;
        assert!(verdict(Format::Qcow2, &header).is_err());
        header[8..16].fill(0xFF);
        assert!(verdict(Format::Qcow2, &header).is_err());
    }

    #[test]
    fn a_data_file_is_named() {
        let mut header = qcow2_header();
        header[79] = 4;
        assert!(verdict(Format::Qcow2, &header).unwrap_err().contains("a name that it does not give"));
        header[104..112].copy_from_slice(&[0xE2, 0x79, 0x2A, 0xCA, 0, 0, 0, 3]);
        header[120..128].copy_from_slice(&[b'D', b'A', b'T', b'A', 0, 0, 0, 8]);
        header[128..136].copy_from_slice(b"/dev/sda");
        assert!(verdict(Format::Qcow2, &header).unwrap_err().contains("'/dev/sda' (its data file)"));
        header[108..112].fill(0xFF);
        assert!(verdict(Format::Qcow2, &header).is_err());
    }

    #[test]
    fn encryption_and_unknown_versions_are_refused() {
        let mut header = qcow2_header();
        header[35] = 2;
        assert!(verdict(Format::Qcow2, &header).unwrap_err().contains("encrypted"));
        header[7] = 1;
        assert!(verdict(Format::Qcow2, &header).unwrap_err().contains("version 1"));
    }

    #[test]
    fn every_cut_of_a_header_is_refused_or_passes_without_a_panic() {
        let mut header = qcow2_header();
        header[79] = 4;
        for length in 0..header.len() {
            let _ = verdict(Format::Qcow2, &header[..length]);
            let _ = verdict(Format::Vmdk, &header[..length]);
        }
    }

    fn embedded(capacity: u8, text: &str) -> Vec<u8> {
        let mut image = vec![0; 512];
        image[..4].copy_from_slice(b"KDMV");
        image[12] = capacity;
        image[28] = 1;
        image[36] = 20;
        image.extend_from_slice(text.as_bytes());
        image
    }

    #[test]
    fn extents_outside_of_a_vmdk_are_named() {
        let own = "# Disk DescriptorFile\nparentCID=ffffffff\nRW 20480 SPARSE \"disk.vmdk\"\n";
        assert_eq!(verdict(Format::Vmdk, &embedded(8, own)), Ok(()));
        let refusal = |content: &[u8]| verdict(Format::Vmdk, content).unwrap_err();
        assert!(refusal(&embedded(0, own)).contains("'disk.vmdk' (its extent)"));
        assert!(refusal(own.as_bytes()).contains("'disk.vmdk' (its extent)"));
        let flat = "# Disk DescriptorFile\nRW 20480 FLAT \"/etc/shadow\" 0\n";
        assert!(refusal(flat.as_bytes()).contains("'/etc/shadow' (its extent)"));
        assert!(refusal(&embedded(8, flat)).contains("'/etc/shadow' (its extent)"));
        let two = format!("{own}RW 1 FLAT \"b\" 0\n");
        assert!(refusal(&embedded(8, &two)).contains("'b' (one of its extents)"));
        let child = format!("{own}parentFileNameHint=\"base.vmdk\"\n");
        assert!(refusal(&embedded(8, &child)).contains("'base.vmdk' (its parent)"));
    }
}
