//! Fetches public images from servers, and keeps them.
//!
//! ```text
//! <home>/images/sha256-HEX        verified when it was stored, and again each time before it is used
//! <home>/images/sha256-HEX.part   what has come of it; a later command goes on from there
//! ```
//!
//! An image is public: it is what somebody publishes for everybody, and not guest data, so it is
//! kept in the clear. Nothing of it is used before its checksum is that which a person has stated.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock, fstatvfs};
use strongroom_files::FileError;
use strongroom_serving::{client_of, machine_roots, roots_of};
use strongroom_types::display_bytes;
use ureq::http::{Request, Response, StatusCode, header};

use super::checksum::{Checksum, ImageUrl};
use crate::error::CliError;
use crate::output::Output;
use crate::progress::Meter;

/// The directory of fetched images in the home. It may be removed at any time.
const CACHE: &str = "images";
/// The largest image: several times the largest that are published.
const IMAGE_BYTES_MAX: u64 = 256 << 30;
/// What stays free of the file system of the cache.
const FREE_BYTES_MIN: u64 = 256 << 20;
/// The most servers that one sends us on to. Mirrors take one or two.
const REDIRECTS_MAX: u32 = 5;
/// Bytes that are read at once.
const PIECE_BYTES: usize = 1 << 20;
/// Timeout of a connection, and of a server's answer.
const CONNECTS_WITHIN: Duration = Duration::from_secs(10);
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);
/// Timeout of all of an image.
const ARRIVES_WITHIN: Duration = Duration::from_secs(24 * 3600);
/// The longest file with certificates, in bytes.
const CA_BYTES_MAX: u64 = 1 << 20;

/// An image on a server.
pub struct Wanted<'a> {
    pub url: &'a ImageUrl,
    pub checksum: &'a Checksum,
    /// The certificates of the authorities that are trusted; those of this machine by default.
    pub ca: Option<&'a Path>,
}

impl Wanted<'_> {
    /// Returns the image, which is kept in the home.
    pub fn fetch(&self, output: &Output, home: &Path) -> Result<File, CliError> {
        let cache = home.join(CACHE);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&cache);
        made.map_err(|error| CliError::File(FileError { action: "make", path: cache.clone(), error }))?;
        let kept = cache.join(self.checksum.to_string());
        if let Ok(file) = File::open(&kept) {
            if self.is_it(&file, &kept)? {
                output.remark(&format!("{} was fetched before", self.url));
                return Ok(file);
            }
            remove(&kept)?;
        }
        let part = cache.join(format!("{}.part", self.checksum));
        let failed = |error| CliError::File(FileError { action: "write", path: part.clone(), error });
        let opened = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&part);
        let file = opened.map_err(failed)?;
        // Another command that fetches it has it until it ends.
        flock(&file, FlockOperation::LockExclusive).map_err(|errno| failed(errno.into()))?;
        self.complete(output, &file, &part)?;
        if !self.is_it(&file, &part)? {
            remove(&part)?;
            return Err(CliError::ImageChecksum {
                image: self.url.to_string(),
                expected: self.checksum.to_string(),
            });
        }
        file.sync_all().and_then(|()| std::fs::rename(&part, &kept)).map_err(failed)?;
        // The same file, whatever has the name now; nobody whom it is passed to writes to it.
        File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(failed)
    }

    fn is_it(&self, file: &File, path: &Path) -> Result<bool, CliError> {
        let found = self.checksum.of_file(file);
        let found = found
            .map_err(|error| CliError::File(FileError { action: "read", path: path.to_owned(), error }))?;
        Ok(found == *self.checksum)
    }

    /// Appends what the file lacks.
    fn complete(&self, output: &Output, file: &File, path: &Path) -> Result<(), CliError> {
        let failed = |error| CliError::File(FileError { action: "write", path: path.to_owned(), error });
        let mut there = file.metadata().map_err(failed)?.len();
        let mut answer = self.ask(there)?;
        if there > 0 && answer.status() != StatusCode::PARTIAL_CONTENT {
            // The server does not go on, or has another file now.
            (there, answer) = (0, self.ask(0)?);
            file.set_len(0).map_err(failed)?;
        }
        let status = answer.status();
        if !status.is_success() {
            return Err(self.not_fetched(format!("the server answers {status}")));
        }
        let length: Option<u64> = answer
            .headers()
            .get(header::CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse().ok());
        let room = self.room(file, there).map_err(failed)?;
        let wanted = length.unwrap_or(0);
        if wanted > room {
            let (wanted, room) = (display_bytes(wanted), display_bytes(room));
            return Err(
                self.not_fetched(format!("it takes {wanted}, and {} has room for {room}", path.display()))
            );
        }
        let mut meter = Meter::start(output, "fetching", there + wanted);
        let (mut from, mut into) = (answer.into_body().into_reader().take(room + 1), file);
        let (mut piece, mut came) = (vec![0; PIECE_BYTES], 0);
        loop {
            let count = from.read(&mut piece).map_err(|error| self.not_fetched(error.to_string()))?;
            if count == 0 {
                break;
            }
            came += count as u64;
            if came > room {
                return Err(self.not_fetched(format!("it takes more than the room of {}", path.display())));
            }
            into.write_all(&piece[..count]).map_err(failed)?;
            meter.at(there + came);
        }
        match length.filter(|length| *length != came) {
            Some(_) => Err(self.not_fetched("it broke off; the same command goes on from there".to_owned())),
            None => Ok(()),
        }
    }

    /// What may still be written: nothing is taken of a file system that is nearly full.
    fn room(&self, file: &File, there: u64) -> io::Result<u64> {
        let found = fstatvfs(file)?;
        let free = found.f_bavail.saturating_mul(found.f_frsize).saturating_sub(FREE_BYTES_MIN);
        Ok(free.min(IMAGE_BYTES_MAX.saturating_sub(there)))
    }

    /// Asks for the image from this byte on.
    fn ask(&self, from: u64) -> Result<Response<ureq::Body>, CliError> {
        let roots = match self.ca {
            None => machine_roots(),
            Some(ca) => {
                let pem = strongroom_files::read(ca, CA_BYTES_MAX).map_err(|error| {
                    CliError::File(FileError { action: "read", path: ca.to_owned(), error })
                })?;
                roots_of(&pem)
            }
        };
        let roots = roots.map_err(|error| self.not_fetched(error.to_string()))?;
        // Nothing secret is sent, so a server may send us on; https_only holds on the way, too.
        let agent = client_of(roots)
            .max_redirects(REDIRECTS_MAX)
            .timeout_connect(Some(CONNECTS_WITHIN))
            .timeout_recv_response(Some(ANSWERS_WITHIN))
            .timeout_recv_body(Some(ARRIVES_WITHIN))
            .build()
            .new_agent();
        let mut request = Request::get(self.url.as_str()).header(header::USER_AGENT, "strongroom");
        if from > 0 {
            request = request.header(header::RANGE, format!("bytes={from}-"));
        }
        let request = request.body(()).map_err(|error| self.not_fetched(error.to_string()))?;
        agent.run(request).map_err(|error| self.not_fetched(error.to_string()))
    }

    fn not_fetched(&self, reason: String) -> CliError {
        CliError::ImageNotFetched { url: self.url.to_string(), reason }
    }
}

fn remove(path: &Path) -> Result<(), CliError> {
    strongroom_files::remove(path)
        .map(drop)
        .map_err(|error| CliError::File(FileError { action: "remove", path: path.to_owned(), error }))
}
