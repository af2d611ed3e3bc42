//! The measured disks: made once, fully written with random content, and kept for the next run.
//!
//! Disks with block N at offset N of a file share one file, by hard links: the raw file, and the
//! layers of our volumes. The device behind a file system may not be equally fast everywhere (a
//! virtual disk wrote one file at 102,000 operations a second, and another of the same size at
//! 48,000), so sharing makes the comparison one of programs, not of places. Each server sees the
//! last one's content as noise. LUKS has a header in its file, and a file of its own.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::fio::{self, Target};
use super::guest_load::{GuestLoad, Guests, LoadError, Order, Pattern};
use super::peers::{Content, ServedDisk, Server, create_luks, create_volume};
use super::workload::{Client, Medium};
use crate::programs::{ProgramError, make_secret};
use crate::service::Service;
use crate::study::SubjectError;
use crate::vhost_user::front_end::{FrontEnd, FrontEndError};
use crate::vhost_user::guest::Pages;
use crate::vhost_user::prepared::Lengths;

/// How long QEMU may derive a key, in milliseconds; the derivation is not measured.
const DERIVATION_MS: u32 = 100;
const BLOCK_BYTES: u64 = 4096;

/// The prefix before the id of the owning process.
const MEMORY_DIRECTORY: &str = "/dev/shm/strongroom-lab-";
/// A process may have several such directories.
static DISKS_MADE: AtomicU32 = AtomicU32::new(0);

/// The pattern of a disk's first writes.
pub(crate) const FILLING: Pattern =
    Pattern { order: Order::Sequential, reads_percent: 0, block_bytes: 512 << 10, depth: 8 };

/// The sizes of disks, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// A disk that is measured alone.
    pub disk: u64,
    /// Each of several disks.
    pub one_of_several: u64,
    /// A disk in memory, or on tmpfs.
    pub memory: u64,
    /// The number of runs of data, one block each, on the disk for map queries.
    pub map_runs: u64,
}

/// The use of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// For load: fully written.
    Load {
        /// The medium.
        medium: Medium,
        /// Its index.
        index: u16,
        /// The number of disks.
        disks: u16,
    },
    /// For timing its opening, with the default key derivation.
    Open,
    /// For map queries.
    Map,
}

/// The disks of a study, and their creation.
pub struct Disks {
    directory: PathBuf,
    memory_directory: PathBuf,
    secret: PathBuf,
    /// Their sizes.
    pub sizes: Sizes,
    /// Set to stop.
    pub stop: Arc<AtomicBool>,
}

impl Disks {
    /// Disks in `directory`, and in a temporary directory on tmpfs.
    pub fn new(directory: &Path, sizes: Sizes, stop: Arc<AtomicBool>) -> Result<Self, ProgramError> {
        fs::create_dir_all(directory).map_err(|error| file("make", directory, error))?;
        remove_abandoned();
        let number = DISKS_MADE.fetch_add(1, Ordering::Relaxed);
        let memory_directory = PathBuf::from(format!("{MEMORY_DIRECTORY}{}-{number}", std::process::id()));
        fs::create_dir(&memory_directory).map_err(|error| file("make", &memory_directory, error))?;
        let secret = directory.join("secret");
        let disks = Self { directory: directory.to_owned(), memory_directory, secret, sizes, stop };
        if !disks.secret.exists() {
            make_secret(&disks.secret)?;
        }
        Ok(disks)
    }

    /// The directory of the disks.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The key or passphrase of all disks.
    pub fn secret(&self) -> &Path {
        &self.secret
    }

    /// A server's socket: a short path, because the limit is 107 bytes.
    pub fn socket(&self, index: u16) -> PathBuf {
        self.memory_directory.join(format!("s{index}"))
    }

    /// The file for a server's output.
    pub fn log(&self, index: u16) -> PathBuf {
        self.directory.join(format!("server-{index}.log"))
    }

    /// A path for temporary objects.
    pub fn scratch(&self) -> PathBuf {
        self.directory.join("scratch")
    }

    /// The size of a disk.
    pub fn bytes(&self, wanted: Use) -> u64 {
        match wanted {
            Use::Load { medium: Medium::Memory, .. } => self.sizes.memory,
            Use::Load { disks: 1, .. } | Use::Open => self.sizes.disk,
            Use::Load { .. } => self.sizes.one_of_several,
            Use::Map => 2 * self.sizes.map_runs * BLOCK_BYTES,
        }
    }

    /// Whether that disk exists.
    pub fn is_prepared(&self, server: &Server, wanted: Use) -> bool {
        server.has_no_file() || self.path(server, wanted).with_extension("ready").exists()
    }

    /// The disk that `server` serves for this use. Makes it if it is missing, and uses an existing
    /// one as it is.
    pub fn prepare(&self, server: &Server, wanted: Use) -> Result<PathBuf, SubjectError> {
        let path = self.path(server, wanted);
        if self.is_prepared(server, wanted) {
            return Ok(path);
        }
        remove(&path)?;
        match (server, server.content()) {
            (Server::Strongroom(build, content), _) => {
                let key = (*content == Content::Encrypted).then_some(self.secret.as_path());
                create_volume(&build.program, &path, self.bytes(wanted), key)?;
                match self.shared_blocks(wanted) {
                    Some(blocks) if blocks.exists() => share(&blocks, &layer_of(&path)?)?,
                    blocks => {
                        self.fill(server, &path, wanted)?;
                        blocks.map_or(Ok(()), |blocks| share(&layer_of(&path)?, &blocks))?;
                    }
                }
            }
            (_, Content::Encrypted) => {
                let derivation_ms = (wanted != Use::Open).then_some(DERIVATION_MS);
                create_luks(&path, self.bytes(wanted), &self.secret, derivation_ms)?;
                if wanted != Use::Open {
                    self.fill(&Server::StorageDaemon(Content::Encrypted), &path, wanted)?;
                }
            }
            _ if wanted == Use::Map => {
                sparse_file(&path, self.sizes.map_runs).map_err(|error| file("write", &path, error))?
            }
            _ => match self.shared_blocks(wanted) {
                Some(blocks) if blocks.exists() => share(&blocks, &path)?,
                blocks => {
                    fio::fill(Target::CachedFile(&path), self.bytes(wanted), &self.stop)?;
                    blocks.map_or(Ok(()), |blocks| share(&path, &blocks))?;
                }
            },
        }
        // A volume's own program syncs it when it ends.
        if path.is_file() {
            let synced = File::open(&path).and_then(|image| image.sync_all());
            synced.map_err(|error| file("sync", &path, error))?;
        }
        let marker = path.with_extension("ready");
        File::create(&marker).map_err(|error| file("make", &marker, error))?;
        Ok(path)
    }

    /// The file shared by all disks with blocks in their places.
    fn shared_blocks(&self, wanted: Use) -> Option<PathBuf> {
        let index = match wanted {
            Use::Load { medium: Medium::Disk, index, .. } => index,
            // The same disk.
            Use::Open => 0,
            Use::Load { .. } | Use::Map => return None,
        };
        Some(self.directory.join(format!("blocks-{index}-{}", self.bytes(wanted) >> 20)))
    }

    fn path(&self, server: &Server, wanted: Use) -> PathBuf {
        let kind = match (server, server.content()) {
            (Server::Strongroom(_, content), _) => match content {
                Content::Encrypted => "volume-encrypted",
                _ => "volume-clear",
            },
            (_, Content::Encrypted) => "luks",
            _ => "raw",
        };
        let mib = self.bytes(wanted) >> 20;
        let (directory, name) = match wanted {
            Use::Load { medium: Medium::Memory, index, .. } => {
                (&self.memory_directory, format!("{kind}-{index}-{mib}"))
            }
            Use::Load { index, .. } => (&self.directory, format!("{kind}-{index}-{mib}")),
            // Only a LUKS header differs.
            Use::Open if kind == "luks" => (&self.directory, format!("{kind}-open-{mib}")),
            Use::Open => (&self.directory, format!("{kind}-0-{mib}")),
            Use::Map => (&self.directory, format!("{kind}-map-{}", self.sizes.map_runs)),
        };
        directory.join(name)
    }

    /// Lets a server write all of it or, for a map, every second block.
    fn fill(&self, server: &Server, path: &Path, wanted: Use) -> Result<(), SubjectError> {
        let socket = self.socket(0);
        let _ = fs::remove_file(&socket);
        let disk = ServedDisk {
            image: path,
            bytes: self.bytes(wanted),
            medium: Medium::Disk,
            client: Client::VhostUser,
            socket: &socket,
            secret: &self.secret,
            queues: 1,
        };
        let name = format!("{}, to be filled", server.name());
        let mut service = Service::start(&name, server.serve(&disk), &socket, &self.log(0))?;
        let (pattern, stride) = match wanted {
            Use::Map => (Pattern { block_bytes: BLOCK_BYTES as u32, depth: 32, ..FILLING }, 2),
            _ => (FILLING, 1),
        };
        let guests = Guests { queues: 1, pages: Pages::Huge, spin: Duration::ZERO, lengths: Lengths::Same };
        let connect = |socket: &Path| connect(socket, pattern, guests);
        let front_end = service.connect(&self.stop, connect)?;
        let filled = GuestLoad::new(vec![front_end], pattern, guests, Arc::clone(&self.stop))
            .and_then(|mut load| load.fill(stride));
        filled.map_err(|error| failed(&service, error))?;
        service.end()?;
        Ok(())
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.memory_directory);
    }
}

/// Removes leftovers of killed runs from memory.
fn remove_abandoned() {
    let Some((parent, prefix)) = MEMORY_DIRECTORY.rsplit_once('/') else { return };
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner =
            name.to_str().and_then(|name| name.strip_prefix(prefix)?.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|owner| !Path::new(&format!("/proc/{owner}")).exists()) {
            // Another run may remove it at the same time.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Connects to a server, if it is already there.
pub fn connect(socket: &Path, pattern: Pattern, guests: Guests) -> Result<Option<FrontEnd>, FrontEndError> {
    match GuestLoad::connect(socket, pattern, guests) {
        Ok(front_end) => Ok(Some(front_end)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Converts a load's error to one of the server.
pub fn failed(service: &Service, error: LoadError) -> ProgramError {
    match error {
        LoadError::Signal => ProgramError::Signal,
        error => service.failed(error),
    }
}

/// Makes a file in which every second block is a hole.
fn sparse_file(path: &Path, runs: u64) -> io::Result<()> {
    let file = File::options().write(true).create_new(true).open(path)?;
    file.set_len(2 * runs * BLOCK_BYTES)?;
    let block = [0xA5; BLOCK_BYTES as usize];
    (0..runs).try_for_each(|index| file.write_all_at(&block, 2 * index * BLOCK_BYTES))?;
    file.sync_all()
}

/// The only layer of a volume.
fn layer_of(volume: &Path) -> Result<PathBuf, ProgramError> {
    let find = || {
        let is_layer = |path: &PathBuf| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            name.is_some_and(|name| name.starts_with("layer-") && !name.contains('.'))
        };
        let mut paths = fs::read_dir(volume)?.map(|entry| entry.map(|entry| entry.path()));
        paths.find_map(|path| path.map(|path| Some(path).filter(is_layer)).transpose()).transpose()
    };
    let missing = || io::Error::new(io::ErrorKind::NotFound, "it has no layer");
    find().and_then(|path| path.ok_or_else(missing)).map_err(|error| file("read", volume, error))
}

/// Replaces `name` by a link to the file `blocks`.
fn share(blocks: &Path, name: &Path) -> Result<(), SubjectError> {
    remove(name)?;
    Ok(fs::hard_link(blocks, name).map_err(|error| file("link", name, error))?)
}

/// Removes leftovers of an interrupted run.
pub fn remove(path: &Path) -> Result<(), ProgramError> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    };
    removed.map_err(|error| file("delete", path, error))
}

fn file(action: &'static str, path: &Path, error: io::Error) -> ProgramError {
    ProgramError::File { action, path: path.to_owned(), error }
}
