//! A volume with snapshots on a simulated file system, and what is expected to be read from it.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test fails by panicking; not every test needs all of it"
)]

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strongroom_datastore::file::*;
use strongroom_io::EventLoop;
use strongroom_keys::{Kek, KekSource};
use strongroom_memory::secret::SecretBytes;
use strongroom_sim::SimFs;
use strongroom_types::{BLOCK_BYTES, SnapshotId, VolumeSize};
use strongroom_worker::DiskAccess;
use strongroom_worker::layers::{PlainBlocks, plain_blocks_over};

pub const BLOCK: usize = BLOCK_BYTES as usize;
pub const BLOCKS: u64 = 40;
/// Large enough not to fill, because nothing empties it while clients write.
pub const LOG_BYTES: u64 = 1 << 20;

pub fn path() -> &'static Path {
    Path::new("/ds/vm1")
}

pub fn kek(fill: u8) -> Kek {
    KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [fill; 32]).unwrap()).unwrap()
}

pub fn protection(kek: Option<&Kek>) -> Protection<'_> {
    kek.map_or(Protection::Unencrypted, Protection::Encrypted)
}

/// The plain content of a volume and of its snapshots.
pub type Contents = Vec<(Option<SnapshotId>, Vec<u8>)>;

pub struct Life<'a> {
    pub fs: SimFs,
    pub kek: Option<&'a Kek>,
    random: StdRng,
    /// The fill of each block.
    now: Vec<u8>,
    pub kept: Vec<(SnapshotId, Vec<u8>)>,
    next_fill: u8,
}

pub fn event_loop(fs: &SimFs, random: &mut StdRng) -> Rc<dyn EventLoop> {
    Rc::new(fs.reactor(random.random()).unwrap())
}

pub fn to_open(kek: Option<&Kek>, access: Access) -> OpenOptions<'_> {
    to_open_under(protection(kek), access)
}

pub fn to_open_under(protection: Protection<'_>, access: Access) -> OpenOptions<'_> {
    OpenOptions { protection, access, lock_wait: Duration::ZERO, least_generation: 0 }
}

impl<'a> Life<'a> {
    /// A volume with two branches of snapshots, of which some layers hide others.
    pub fn new(seed: u64, kek: Option<&'a Kek>) -> Self {
        let fs = SimFs::new(seed);
        let random = StdRng::seed_from_u64(seed);
        let now = vec![0; BLOCKS as usize];
        let mut life = Life { fs, kek, random, now, kept: Vec::new(), next_fill: 0 };
        let options = CreateOptions {
            size: VolumeSize::new(BLOCKS * BLOCK_BYTES).unwrap(),
            provisioning: if seed % 5 == 4 { Provisioning::Thick } else { Provisioning::Thin },
            protection: protection(kek),
            log_bytes: Some(LOG_BYTES),
            integrity: (kek.is_some() && seed % 4 != 3).then_some(Integrity::NEW),
        };
        create_on(&life.fs, path(), &options).unwrap();
        life.use_it();
        life.snapshot("first");
        life.use_it();
        if seed.is_multiple_of(2) {
            let first = life.kept[0].clone();
            life.snapshot("second");
            revert_on(&life.fs, path(), first.0, None, &life.to_add()).unwrap();
            life.now = first.1;
            life.use_it();
        }
        life
    }

    pub fn to_add(&self) -> AddLayerOptions<'a> {
        AddLayerOptions {
            protection: protection(self.kek),
            log_bytes: Some(LOG_BYTES),
            lock_wait: Duration::ZERO,
            least_generation: 0,
        }
    }

    pub fn snapshot(&mut self, name: &str) {
        let snapshot = NewSnapshot { id: SnapshotId::random(), name: name.parse().unwrap() };
        create_snapshot_on(&self.fs, path(), &snapshot, &self.to_add()).unwrap();
        self.kept.push((snapshot.id, self.now.clone()));
    }

    /// Writes and discards, and ends that in order.
    pub fn use_it(&mut self) {
        let mut volume = open_on(&self.fs, path(), &to_open(self.kek, Access::ReadWrite)).unwrap();
        let blocks = Arc::clone(&volume.disk);
        let PlainBlocks { disk, tags, .. } = plain_blocks_over(blocks, &mut volume).unwrap();
        let mut client = DiskAccess::on(event_loop(&self.fs, &mut self.random), &*disk).unwrap();
        for _ in 0..8 {
            let first = self.random.random_range(0..BLOCKS);
            let end = (first + self.random.random_range(1..6)).min(BLOCKS);
            let bytes = (end - first) * BLOCK_BYTES;
            let fill = match self.random.random_range(0..3) {
                0 => 0,
                _ => {
                    self.next_fill = self.next_fill % 250 + 1;
                    self.next_fill
                }
            };
            match fill {
                0 => client.write_zeroes_at(first * BLOCK_BYTES, bytes).unwrap(),
                fill => client.write_at(first * BLOCK_BYTES, &vec![fill; bytes as usize]).unwrap(),
            }
            self.now[first as usize..end as usize].fill(fill);
        }
        client.flush().unwrap();
        drop((client, disk));
        empty_log(&self.fs, &volume, &mut self.random);
        if let Some(tags) = tags {
            assert!(tags.close());
        }
    }

    pub fn generation(&self) -> u64 {
        describe_on(&self.fs, path()).unwrap().descriptor.generation
    }

    /// All that is expected to be read.
    pub fn contents(&self) -> Contents {
        let plain = |fills: &[u8]| fills.iter().flat_map(|fill| vec![*fill; BLOCK]).collect::<Vec<u8>>();
        let kept = self.kept.iter().map(|(id, fills)| (Some(*id), plain(fills)));
        std::iter::once((None, plain(&self.now))).chain(kept).collect()
    }
}

pub fn empty_log(fs: &SimFs, volume: &OpenVolume, random: &mut StdRng) {
    let event_loop = event_loop(fs, random);
    let thread = strongroom_io::Thread {
        pool: strongroom_memory::BufferPool::new(8 << 20).unwrap(),
        reactor: event_loop.reactor(),
    };
    volume.disk.expect_destager(true);
    volume.disk.end_destaging(End::Empty);
    let Some(mut destager) = volume.disk.destager(&thread).unwrap() else { return };
    loop {
        destager.poll();
        match destager.ended() {
            Some(ended) => return ended.unwrap(),
            None => event_loop.sleep(Duration::from_secs(1)).unwrap(),
        }
    }
}

/// Reads the present content, or a snapshot's.
pub fn read(
    fs: &SimFs,
    path: &Path,
    protection: Protection<'_>,
    snapshot: Option<SnapshotId>,
    random: &mut StdRng,
) -> Result<Vec<u8>, String> {
    let told = |error: DatastoreError| error.to_string();
    let to_read = to_open_under(protection, Access::ReadOnly);
    let mut volume = match snapshot {
        None => open_on(fs, path, &to_read).map_err(told)?,
        Some(id) => open_snapshot_on(fs, path, id, &to_read).map_err(told)?,
    };
    let blocks = Arc::clone(&volume.disk);
    let stages = plain_blocks_over(blocks, &mut volume).map_err(|error| error.to_string())?;
    let mut client = DiskAccess::on(event_loop(fs, random), &*stages.disk).unwrap();
    let mut content = vec![0; (BLOCKS * BLOCK_BYTES) as usize];
    client.read_at(0, &mut content).map_err(|error| error.to_string())?;
    Ok(content)
}

pub fn expect(fs: &SimFs, kek: Option<&Kek>, contents: &Contents, random: &mut StdRng) -> Result<(), String> {
    expect_under(fs, protection(kek), contents, random)
}

pub fn expect_under(
    fs: &SimFs,
    protection: Protection<'_>,
    contents: &Contents,
    random: &mut StdRng,
) -> Result<(), String> {
    expect_at(fs, path(), protection, contents, random)
}

pub fn expect_at(
    fs: &SimFs,
    path: &Path,
    protection: Protection<'_>,
    contents: &Contents,
    random: &mut StdRng,
) -> Result<(), String> {
    for (snapshot, expected) in contents {
        let found = read(fs, path, protection, *snapshot, random)?;
        let wrong =
            (0..BLOCKS as usize).find(|at| found[at * BLOCK..][..BLOCK] != expected[at * BLOCK..][..BLOCK]);
        if let Some(block) = wrong {
            let (found, expected) = (&found[block * BLOCK..][..4], expected[block * BLOCK]);
            return Err(format!("block {block} of {snapshot:?} has {found:?} instead of {expected}"));
        }
    }
    Ok(())
}
