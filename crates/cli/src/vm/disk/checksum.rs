//! Checksums of images, as their publishers state them.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::str::FromStr;

use strongroom_crypto::mac::{DIGEST_BYTES, SHA512_BYTES, Sha256, Sha512};
use strongroom_types::hex;

/// Bytes that are read at once.
const PIECE_BYTES: usize = 1 << 20;

/// A checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// SHA-256.
    Sha256([u8; DIGEST_BYTES]),
    /// SHA-512.
    Sha512([u8; SHA512_BYTES]),
}

impl Checksum {
    /// Computes the checksum of a whole file in the same way as this one.
    pub fn of_file(&self, file: &File) -> io::Result<Self> {
        match self {
            Self::Sha256(_) => Self::sha256_of(file).map(Self::Sha256),
            Self::Sha512(_) => {
                let mut digest = Sha512::default();
                each_piece(FromStart { file, at: 0 }, |piece| digest.update(piece))?;
                Ok(Self::Sha512(digest.finish()))
            }
        }
    }
}

impl Checksum {
    /// SHA-256 of a whole file.
    pub fn sha256_of(file: &File) -> io::Result<[u8; DIGEST_BYTES]> {
        let mut digest = Sha256::default();
        each_piece(FromStart { file, at: 0 }, |piece| digest.update(piece))?;
        Ok(digest.finish())
    }
}

/// A file from its start on, wherever its holders read it.
struct FromStart<'a> {
    file: &'a File,
    at: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(into, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

fn each_piece(mut from: impl Read, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match from.read(&mut piece)? {
            0 => return Ok(()),
            count => each(&piece[..count]),
        }
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sha256(digest) => write!(f, "sha256-{}", hex::encode(digest)),
            Self::Sha512(digest) => write!(f, "sha512-{}", hex::encode(digest)),
        }
    }
}

/// Parses the value of `--sha256`.
pub fn parse_sha256(text: &str) -> Result<Checksum, String> {
    digits(text).map(Checksum::Sha256)
}

/// Parses the value of `--sha512`.
pub fn parse_sha512(text: &str) -> Result<Checksum, String> {
    digits(text).map(Checksum::Sha512)
}

fn digits<const BYTES: usize>(text: &str) -> Result<[u8; BYTES], String> {
    let bytes = hex::decode(&text.to_ascii_lowercase()).and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| format!("write its {} hexadecimal digits", 2 * BYTES))
}

/// Where an image is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImagePlace {
    /// A file or block device of this machine.
    File(std::path::PathBuf),
    /// On a server.
    Url(ImageUrl),
}

impl FromStr for ImagePlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((scheme, rest)) = text.split_once("://") else { return Ok(Self::File(text.into())) };
        if scheme != "https" {
            return Err(format!("images are fetched over https alone, and not over {scheme}"));
        }
        let server = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if server.contains('@') {
            return Err("an image with a password is not fetched; download it, and name the file".to_owned());
        }
        if server.is_empty() {
            return Err("write https://SERVER/PATH".to_owned());
        }
        Ok(Self::Url(ImageUrl(text.to_owned())))
    }
}

/// A URL of an image. What it shows leaves out the query, which may be secret.
#[derive(Clone, PartialEq, Eq)]
pub struct ImageUrl(String);

impl ImageUrl {
    /// All of it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ImageUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.split(['?', '#']).next().unwrap_or_default())
    }
}

impl fmt::Debug for ImageUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_checksum_is_that_of_the_whole_file() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"abc").unwrap();
        let expected =
            parse_sha256("BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD").unwrap();
        assert_eq!(expected.of_file(&file).unwrap(), expected);
        let longer = parse_sha512(&"ab".repeat(64)).unwrap();
        let found = longer.of_file(&file).unwrap().to_string();
        assert!(found.starts_with("sha512-ddaf35a193617aba"), "{found}");
        assert!(parse_sha256("ab").unwrap_err().contains("64 hexadecimal"));
        assert!(parse_sha512(&"xy".repeat(64)).is_err());
    }

    #[test]
    fn a_place_is_a_file_or_an_https_url() {
        assert_eq!("a/b.qcow2".parse(), Ok(ImagePlace::File("a/b.qcow2".into())));
        let Ok(ImagePlace::Url(url)) = "https://example.org/a.qcow2?secret=1".parse() else { panic!() };
        assert_eq!(url.to_string(), "https://example.org/a.qcow2");
        assert!(!format!("{url:?}").contains("secret"));
        for wrong in
            ["http://example.org/a", "ftp://example.org/a", "https://a:b@example.org/a", "https:///a"]
        {
            assert!(wrong.parse::<ImagePlace>().is_err(), "{wrong}");
        }
    }
}
