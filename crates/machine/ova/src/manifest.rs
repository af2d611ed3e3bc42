//! The manifest of an archive: the checksums of its files, as `SHA256(disk.vmdk)= HEX`.

use std::fs::File;
use std::io::Read;

use strongroom_crypto::mac::{SHA512_BYTES, Sha256, Sha512};
use strongroom_types::hex;

use crate::OvaError;
use crate::archive::Member;

/// The longest manifest, in bytes.
pub const BYTES_MAX: u64 = 1 << 20;
/// Bytes that are read at once.
const PIECE_BYTES: usize = 1 << 20;

/// Which files a manifest vouches for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// The files whose checksums are those of the manifest.
    pub files: Vec<String>,
    /// Whether checksums of another kind were left aside (SHA-1, which protects from accidents
    /// alone).
    pub has_others: bool,
}

/// A checksum that a manifest states.
enum Stated {
    Sha256(Vec<u8>),
    Sha512(Vec<u8>),
}

/// Compares the files of an archive with its manifest.
///
/// # Errors [`OvaError::Checksum`] if a file differs, and [`OvaError::Archive`] if the manifest
/// names one that is not there, or cannot be read.
pub fn verify(archive: &File, members: &[Member], manifest: &str) -> Result<Verified, OvaError> {
    let mut verified = Verified::default();
    for line in manifest.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (algorithm, name, digits) = read_line(line)
            .ok_or_else(|| OvaError::Archive("a line of its manifest cannot be read".to_owned()))?;
        let member = members.iter().find(|member| member.name == name);
        let member = member.ok_or_else(|| {
            OvaError::Archive(format!("its manifest names {}, which it does not have", name.escape_debug()))
        })?;
        let stated = match algorithm.to_ascii_uppercase().as_str() {
            "SHA256" => hex::decode(&digits).map(Stated::Sha256),
            "SHA512" => hex::decode(&digits).map(Stated::Sha512),
            _ => {
                verified.has_others = true;
                continue;
            }
        };
        let differs = || OvaError::Checksum(member.name.clone());
        match stated.ok_or_else(differs)? {
            Stated::Sha256(stated) => {
                let mut digest = Sha256::default();
                each_piece(archive, member, |piece| digest.update(piece))?;
                if digest.finish()[..] != stated[..] {
                    return Err(differs());
                }
            }
            Stated::Sha512(stated) => {
                let mut digest = Sha512::default();
                each_piece(archive, member, |piece| digest.update(piece))?;
                let found: [u8; SHA512_BYTES] = digest.finish();
                if found[..] != stated[..] {
                    return Err(differs());
                }
            }
        }
        verified.files.push(member.name.clone());
    }
    Ok(verified)
}

/// The algorithm, the file's name and the digits, in lower case.
fn read_line(line: &str) -> Option<(&str, &str, String)> {
    let (algorithm, rest) = line.split_once('(')?;
    let (name, digits) = rest.rsplit_once(')')?;
    let digits = digits.trim_start().strip_prefix('=')?.trim().to_ascii_lowercase();
    Some((algorithm.trim(), name, digits))
}

fn each_piece(archive: &File, member: &Member, mut each: impl FnMut(&[u8])) -> Result<(), OvaError> {
    let (mut content, mut piece) = (member.content(archive), vec![0; PIECE_BYTES]);
    loop {
        match content.read(&mut piece)? {
            0 => return Ok(()),
            count => each(&piece[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_file_that_differs_from_the_manifest_is_refused() {
        let mut archive = tempfile::tempfile().unwrap();
        archive.write_all(b"..abc..").unwrap();
        let members = [Member { name: "disk (1).vmdk".to_owned(), offset: 2, length: 3 }];
        let told = |manifest: &str| verify(&archive, &members, manifest);
        let good = told(&format!("SHA256(disk (1).vmdk)= {}\r\n", ABC.to_uppercase())).unwrap();
        assert_eq!(good.files, ["disk (1).vmdk"]);
        let other = format!("SHA256(disk (1).vmdk)= {}", ABC.replace('b', "c"));
        assert!(matches!(told(&other), Err(OvaError::Checksum(_))));
        assert!(matches!(told("SHA256(disk (1).vmdk)= "), Err(OvaError::Checksum(_))));
        assert!(matches!(told(&format!("SHA256(other)= {ABC}")), Err(OvaError::Archive(_))));
        assert!(matches!(told("nonsense"), Err(OvaError::Archive(_))));
        let weak = told("SHA1(disk (1).vmdk)= a9993e364706816aba3e25717850c26c9cd0d89d").unwrap();
        assert!(weak.files.is_empty() && weak.has_others);
    }
}
