//! The files in an archive: where they lie in it. Nothing is unpacked under a name of the
//! archive's.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use crate::OvaError;

/// The unit of an archive, in bytes.
pub const BLOCK_BYTES: u64 = 512;
/// The most files in an archive: a description, a manifest, a certificate, and disks.
const FILES_MAX: usize = 64;
/// The most headers, of files and of other things.
const HEADERS_MAX: usize = 1024;
/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// The longest header of attributes (pax), in bytes.
const PAX_BYTES_MAX: u64 = 64 << 10;

/// A file in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name, without a directory.
    pub name: String,
    /// Where its content begins.
    pub offset: u64,
    /// The length of its content.
    pub length: u64,
}

impl Member {
    /// Its content.
    pub fn content<'a>(&self, archive: &'a File) -> Content<'a> {
        Content { archive, at: self.offset, end: self.offset + self.length }
    }

    /// Its whole content, if it is at most so long.
    ///
    /// # Errors
    /// [`OvaError`], also if it is longer.
    pub fn read(&self, archive: &File, bytes_max: u64) -> Result<Vec<u8>, OvaError> {
        if self.length > bytes_max {
            return Err(OvaError::Archive(format!("{} has more than {bytes_max} bytes", self.name)));
        }
        let mut content = vec![0; self.length as usize];
        archive.read_exact_at(&mut content, self.offset)?;
        Ok(content)
    }
}

/// The content of a member, read from its start to its end.
#[derive(Debug)]
pub struct Content<'a> {
    archive: &'a File,
    at: u64,
    end: u64,
}

impl Read for Content<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = (self.end - self.at).min(into.len() as u64) as usize;
        if most == 0 {
            return Ok(0);
        }
        let count = self.archive.read_at(&mut into[..most], self.at)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += count as u64;
        Ok(count)
    }
}

/// Finds the files of an archive, in their order.
///
/// # Errors
/// [`OvaError`] if it is no tar archive of plain files that are all in it.
pub fn members(archive: &File) -> Result<Vec<Member>, OvaError> {
    let size_bytes = archive.metadata()?.len();
    find(size_bytes, |offset, into| archive.read_exact_at(into, offset))
}

/// Finds the files of an archive of this size, which `read` reads.
///
/// # Errors
/// As [`members`].
pub fn find(
    size_bytes: u64,
    read: impl Fn(u64, &mut [u8]) -> io::Result<()>,
) -> Result<Vec<Member>, OvaError> {
    let wrong = |what: &str| OvaError::Archive(what.to_owned());
    let mut members: Vec<Member> = Vec::new();
    let (mut at, mut pax) = (0, Pax::default());
    for _ in 0..HEADERS_MAX {
        let mut header = [0; BLOCK_BYTES as usize];
        if size_bytes - at < BLOCK_BYTES {
            return if at == size_bytes { Ok(members) } else { Err(wrong("it ends within a header")) };
        }
        read(at, &mut header)?;
        if header == [0; BLOCK_BYTES as usize] {
            return Ok(members);
        }
        check_sum(&header)?;
        let offset = at + BLOCK_BYTES;
        let length = match pax.length.take() {
            Some(length) => length,
            None => number(&header[124..136]).ok_or_else(|| wrong("a length in it is no number"))?,
        };
        let end = offset.checked_add(length).filter(|end| *end <= size_bytes);
        let end = end.ok_or_else(|| wrong("it ends before its files do: it is incomplete"))?;
        match header[156] {
            b'0' | 0 => {
                let name = match pax.name.take() {
                    Some(name) => name,
                    None => name_of(&header)?,
                };
                let name = plain(&name)?;
                if members.iter().any(|known| known.name == name) {
                    return Err(OvaError::Archive(format!("it has two files {name}")));
                }
                if members.len() == FILES_MAX {
                    return Err(OvaError::Archive(format!("it has more than {FILES_MAX} files")));
                }
                members.push(Member { name, offset, length });
            }
            b'x' => {
                if length > PAX_BYTES_MAX {
                    return Err(wrong("the attributes of a file are too long"));
                }
                let mut text = vec![0; length as usize];
                read(offset, &mut text)?;
                pax = Pax::read(&text).ok_or_else(|| wrong("the attributes of a file cannot be read"))?;
            }
            // Attributes of all files, which say nothing that counts here.
            b'g' => {}
            other => {
                let kind = char::from(other).escape_default();
                return Err(OvaError::Archive(format!(
                    "it has something other than plain files (of type '{kind}')"
                )));
            }
        }
        at = end.next_multiple_of(BLOCK_BYTES).min(size_bytes);
    }
    Err(wrong("it has too many headers"))
}

/// Attributes of the next file (POSIX pax), for what a header has no room for.
#[derive(Default)]
struct Pax {
    name: Option<String>,
    length: Option<u64>,
}

impl Pax {
    /// Reads lines of the form `LENGTH KEY=VALUE`, in which the length is that of the line.
    fn read(text: &[u8]) -> Option<Self> {
        let mut pax = Self::default();
        let mut rest = text;
        while rest.first().is_some_and(|byte| *byte != 0) {
            let digits = rest.iter().take(8).take_while(|byte| byte.is_ascii_digit()).count();
            let length: usize = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
            let line = rest.get(..length)?;
            rest = &rest[length..];
            let line = line.get(digits..)?.strip_prefix(b" ")?.strip_suffix(b"\n")?;
            let (key, value) = std::str::from_utf8(line).ok()?.split_once('=')?;
            match key {
                "path" => pax.name = Some(value.to_owned()),
                "size" => pax.length = Some(value.parse().ok()?),
                _ => {}
            }
        }
        Some(pax)
    }
}

fn check_sum(header: &[u8; BLOCK_BYTES as usize]) -> Result<(), OvaError> {
    let stated = number(&header[148..156]);
    if stated == Some(sum(header)) {
        return Ok(());
    }
    Err(OvaError::Archive("it is no tar archive, or damaged".to_owned()))
}

/// The sum of a header's bytes, in which the sum itself counts as spaces.
pub(crate) fn sum(header: &[u8; BLOCK_BYTES as usize]) -> u64 {
    let bytes = header.iter().enumerate();
    bytes.map(|(at, byte)| u64::from(if (148..156).contains(&at) { b' ' } else { *byte })).sum()
}

/// A number in octal digits, or in binary if it has no room for them (GNU).
fn number(field: &[u8]) -> Option<u64> {
    if let [0x80, rest @ ..] = field {
        return rest.iter().try_fold(0_u64, |all, byte| all.checked_mul(256)?.checked_add(u64::from(*byte)));
    }
    let text = std::str::from_utf8(field).ok()?;
    u64::from_str_radix(text.trim_matches(|letter| letter == '\0' || letter == ' '), 8).ok()
}

fn name_of(header: &[u8; BLOCK_BYTES as usize]) -> Result<String, OvaError> {
    let field = |range: std::ops::Range<usize>| {
        let bytes = &header[range];
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        std::str::from_utf8(&bytes[..end]).map(str::to_owned)
    };
    let unclear = |_| OvaError::Archive("a name in it is no text".to_owned());
    let name = field(0..100).map_err(unclear)?;
    // Old archives have something else in the place of the prefix.
    let prefix =
        if &header[257..262] == b"ustar" { field(345..500).map_err(unclear)? } else { String::new() };
    Ok(if prefix.is_empty() { name } else { format!("{prefix}/{name}") })
}

fn plain(name: &str) -> Result<String, OvaError> {
    let name = name.strip_prefix("./").unwrap_or(name);
    let is_plain = !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && !name.contains('/')
        && !name.chars().any(char::is_control)
        && name != "."
        && name != "..";
    match is_plain {
        true => Ok(name.to_owned()),
        false => Err(OvaError::Archive(format!("{} is no name of a file in it", name.escape_debug()))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::writing::header;

    fn found(archive: &[u8]) -> Result<Vec<Member>, OvaError> {
        find(archive.len() as u64, |offset, into| {
            into.copy_from_slice(&archive[offset as usize..offset as usize + into.len()]);
            Ok(())
        })
    }

    fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut archive = Vec::new();
        for (name, content) in files {
            archive.extend(header(name, content.len() as u64).unwrap());
            archive.extend(*content);
            archive.resize(archive.len().next_multiple_of(512), 0);
        }
        archive.resize(archive.len() + 1024, 0);
        archive
    }

    #[test]
    fn files_are_found_where_they_lie() {
        let archive = archive(&[("vm.ovf", b"<Envelope/>"), ("disk.vmdk", &[7; 1000])]);
        let members = found(&archive).unwrap();
        assert_eq!(members[0], Member { name: "vm.ovf".to_owned(), offset: 512, length: 11 });
        assert_eq!(members[1].offset, 1536);
        let disk = &archive[1536..2536];
        assert!(disk.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn what_leads_elsewhere_or_beyond_the_end_is_refused() {
        let good = archive(&[("vm.ovf", b"x")]);
        for name in ["../vm.ovf", "/vm.ovf", "a/b", "..", "a\nb"] {
            assert!(found(&archive(&[(name, b"x")])).is_err(), "{name}");
        }
        assert!(found(&archive(&[("a", b"x"), ("a", b"y")])).is_err());
        let many: Vec<_> = (0..=FILES_MAX).map(|number| format!("f{number}")).collect();
        let many: Vec<(&str, &[u8])> = many.iter().map(|name| (name.as_str(), &b"x"[..])).collect();
        assert!(found(&archive(&many)).is_err());
        // A link, a length beyond the end, a header that was changed, and one that is cut.
        let changed = |at: usize, byte: u8| {
            let mut archive = good.clone();
            archive[at] = byte;
            let header: [u8; 512] = archive[..512].try_into().unwrap();
            archive[148..155].copy_from_slice(format!("{:06o}\0", sum(&header)).as_bytes());
            archive
        };
        assert!(found(&changed(156, b'2')).is_err());
        assert!(found(&changed(124, b'7')).is_err());
        assert!(found(&good[..700]).is_ok() && found(&good[..300]).is_err());
        let mut damaged = good.clone();
        damaged[0] ^= 1;
        assert!(found(&damaged).is_err());
        assert!(found(b"").unwrap().is_empty());
    }

    #[test]
    fn lengths_and_names_may_be_in_attributes() {
        let attributes = b"20 path=disk.vmdk.x\n11 size=3\n";
        assert!(Pax::read(attributes).is_none(), "the length of a line counts");
        let attributes = b"18 path=disk.vmdk\n10 size=3\n";
        let mut archive = header("pax", attributes.len() as u64).unwrap().to_vec();
        archive[156] = b'x';
        let first: [u8; 512] = archive[..512].try_into().unwrap();
        archive[148..155].copy_from_slice(format!("{:06o}\0", sum(&first)).as_bytes());
        archive.extend(attributes);
        archive.resize(1024, 0);
        archive.extend(header("short", 0).unwrap());
        archive.extend([1; 512]);
        archive.resize(archive.len() + 1024, 0);
        let members = found(&archive).unwrap();
        assert_eq!(members, [Member { name: "disk.vmdk".to_owned(), offset: 1536, length: 3 }]);
        assert_eq!(number(&[0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0]), Some(2 << 32));
        assert_eq!(number(&[0x80, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..4096), has_sum: bool) {
            let mut archive = bytes;
            if has_sum && archive.len() >= 512 {
                let first: [u8; 512] = archive[..512].try_into().unwrap();
                archive[148..156].copy_from_slice(format!("{:06o}\0 ", sum(&first)).as_bytes());
            }
            if let Ok(members) = found(&archive) {
                for member in members {
                    prop_assert!(member.offset + member.length <= archive.len() as u64);
                }
            }
        }
    }
}
