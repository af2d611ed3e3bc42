//! What the blocks of a volume may hold, and access to a volume of a simulated file system by one
//! client.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use strongroom_datastore::file::*;
use strongroom_io::{EventLoop, Thread};
use strongroom_keys::{Kek, KekSource};
use strongroom_memory::BufferPool;
use strongroom_memory::secret::SecretBytes;
use strongroom_sim::SimFs;
use strongroom_types::BLOCK_BYTES;
use strongroom_worker::DiskAccess;
use strongroom_worker::layers::{PlainBlocks, plain_blocks_over};

pub const BLOCK: usize = BLOCK_BYTES as usize;
const SECTOR: usize = 512;

/// What every block may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oracle {
    /// The values that a block may have: the last one that was flushed, and all since. 0 is zeroes.
    possible: Vec<Vec<u8>>,
}

impl Oracle {
    pub fn new(blocks: u64) -> Self {
        Self { possible: vec![vec![0]; blocks as usize] }
    }

    pub fn write(&mut self, block: u64, fill: u8) {
        self.possible[block as usize].push(fill);
    }

    pub fn flushed(&mut self) {
        for possible in &mut self.possible {
            let last = *possible.last().unwrap();
            *possible = vec![last];
        }
    }

    /// Each sector is old or new.
    pub fn check(&self, content: &[u8]) -> Result<(), String> {
        for (block, bytes) in content.chunks(BLOCK).enumerate() {
            for sector in bytes.chunks(SECTOR) {
                let possible = &self.possible[block];
                if sector.iter().any(|byte| *byte != sector[0]) || !possible.contains(&sector[0]) {
                    return Err(format!("block {block} has {:?} instead of {possible:?}", &sector[..4]));
                }
            }
        }
        Ok(())
    }
}

pub fn kek(fill: u8) -> Kek {
    KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [fill; 32]).unwrap()).unwrap()
}

pub fn protection(kek: Option<&Kek>) -> Protection<'_> {
    kek.map_or(Protection::Unencrypted, Protection::Encrypted)
}

pub fn to_open(kek: Option<&Kek>) -> OpenOptions<'_> {
    let (protection, access, lock_wait) = (protection(kek), Access::ReadWrite, Duration::ZERO);
    OpenOptions { protection, access, lock_wait, least_generation: 0 }
}

pub fn event_loop(fs: &SimFs, random: &mut StdRng) -> Rc<dyn EventLoop> {
    Rc::new(fs.reactor(random.random()).unwrap())
}

/// Opens a volume, does something with its disk, flushes it, and closes it with an empty log.
pub fn with_disk(
    fs: &SimFs,
    path: &Path,
    kek: Option<&Kek>,
    random: &mut StdRng,
    act: impl FnOnce(&mut DiskAccess, &mut StdRng) -> Result<(), String>,
) -> Result<(), String> {
    let mut volume = open_on(fs, path, &to_open(kek)).map_err(|error| error.to_string())?;
    let blocks = Arc::clone(&volume.disk);
    let stages = plain_blocks_over(blocks, &mut volume).map_err(|error| error.to_string())?;
    let PlainBlocks { disk, .. } = stages;
    let mut access = DiskAccess::on(event_loop(fs, random), &*disk).unwrap();
    act(&mut access, random)?;
    access.flush().map_err(|error| error.to_string())?;
    drop((access, disk));
    let event_loop = event_loop(fs, random);
    let thread = Thread { pool: BufferPool::new(8 << 20).unwrap(), reactor: event_loop.reactor() };
    volume.disk.expect_destager(true);
    volume.disk.end_destaging(End::Empty);
    let Some(mut destager) = volume.disk.destager(&thread).unwrap() else { return Ok(()) };
    loop {
        destager.poll();
        match destager.ended() {
            Some(ended) => return ended.map_err(|error| error.to_string()),
            None => event_loop.sleep(Duration::from_secs(1)).unwrap(),
        }
    }
}
