//! The knowledge of a volume at each moment of its life: acknowledged requests, and possible names
//! and sizes.

use std::collections::BTreeSet;

use rand::Rng;
use rand::rngs::StdRng;
use strongroom_datastore::file::*;
use strongroom_keys::{Kek, KekSource};
use strongroom_memory::BufferPool;
use strongroom_memory::secret::SecretBytes;
use strongroom_types::{BLOCK_BYTES, SECTOR_BYTES, VolumeSize};

use super::guest::Log;
use super::oracle::{Effect, Event, Oracle};

const SECTOR: usize = SECTOR_BYTES as usize;
const SECTORS_PER_BLOCK: usize = (BLOCK_BYTES / SECTOR_BYTES) as usize;

/// The names of a volume during its life.
pub const NAMES: [&str; 2] = ["vm1", "vm2"];

/// State shared by all lives of a thread.
pub struct Bench {
    pub kek: Kek,
    pub pool: BufferPool,
    pub memory: BufferPool,
}

impl Bench {
    pub fn new() -> Self {
        let secret = SecretBytes::from_slice_and_wipe(&mut [7; 32]).unwrap();
        Self {
            kek: KekSource::KeyFile {}.kek(&secret).unwrap(),
            pool: BufferPool::new(64 << 20).unwrap(),
            memory: BufferPool::new(64 << 20).unwrap(),
        }
    }

    /// The options for creating a volume. Its log has the minimum size, so that it wraps.
    pub fn create_options(&self, sort: Sort, size_bytes: u64) -> CreateOptions<'_> {
        CreateOptions {
            size: VolumeSize::new(size_bytes).unwrap(),
            provisioning: sort.provisioning,
            protection: sort.protection(&self.kek),
            log_bytes: Some(LOG_BYTES_MIN),
            integrity: sort.integrity.then_some(Integrity::NEW),
        }
    }
}

/// The sort of a volume.
#[derive(Clone, Copy, Debug)]
pub struct Sort {
    pub encrypted: bool,
    pub provisioning: Provisioning,
    /// Whether its blocks have tags.
    pub integrity: bool,
}

impl Sort {
    /// Draws a sort without tags.
    pub fn draw(random: &mut StdRng) -> Self {
        let encrypted = random.random_ratio(4, 5);
        let thin = random.random_ratio(3, 4);
        let provisioning = if thin { Provisioning::Thin } else { Provisioning::Thick };
        Self { encrypted, provisioning, integrity: false }
    }

    pub fn protection(self, kek: &Kek) -> Protection<'_> {
        if self.encrypted { Protection::Encrypted(kek) } else { Protection::Unencrypted }
    }
}

/// The states in which the volume may be found.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    /// The names at which it may exist, whole.
    pub names: Vec<&'static str>,
    /// It may be absent.
    pub absent: bool,
    /// Leftovers of its deletion may exist.
    pub remains: bool,
    /// Sizes that it may have, in bytes.
    pub sizes: Vec<u64>,
}

impl Allowed {
    /// It exists, whole.
    pub fn settled(name: &'static str, size_bytes: u64) -> Self {
        Self { names: vec![name], sizes: vec![size_bytes], ..Self::default() }
    }

    /// It is absent.
    pub fn absent() -> Self {
        Self { absent: true, ..Self::default() }
    }
}

/// The events, by moment.
pub struct Account {
    /// The knowledge at the start.
    first: Oracle,
    pub log: Log,
    /// The allowed states from each of these moments on.
    allowed: Vec<(usize, Allowed)>,
}

impl Account {
    pub fn new(first: Oracle, allowed: Allowed) -> Self {
        let log = Log { oracle: first.clone(), ..Log::default() };
        Self { first, log, allowed: vec![(0, allowed)] }
    }

    /// Sets the allowed states from this moment on.
    pub fn allow(&mut self, moment: usize, allowed: Allowed) {
        self.allowed.push((moment, allowed));
    }
}

/// The knowledge at each moment, in order.
pub struct Knowledge<'a> {
    account: &'a Account,
    pub oracle: Oracle,
    events: usize,
    allowed: usize,
}

impl<'a> Knowledge<'a> {
    pub fn new(account: &'a Account) -> Self {
        Self { account, oracle: account.first.clone(), events: 0, allowed: 0 }
    }

    /// Advances to a moment, which is not before the last one.
    pub fn go_to(&mut self, moment: usize) -> &'a Allowed {
        let happened = self.account.log.events[self.events..].iter().take_while(|(at, _)| *at <= moment);
        for (_, event) in happened {
            self.oracle.apply(event);
            self.events += 1;
        }
        let allowed = &self.account.allowed;
        while allowed.get(self.allowed + 1).is_some_and(|(at, _)| *at <= moment) {
            self.allowed += 1;
        }
        &allowed[self.allowed].1
    }

    /// Describes a sector's content and its block's history for a person.
    pub fn tell(&self, sector: usize, content: &[u8]) -> String {
        let shown = &content[sector * SECTOR..content.len().min((sector + 1) * SECTOR)];
        let mut told = format!("sector {sector} shows {:02x?}", &shown[..8]);
        if let Some(latest) = self.oracle.latest(sector)
            && let Some(at) = shown.iter().zip(&latest[..]).position(|(found, latest)| found != latest)
        {
            told += &format!(", and differs from the latest from byte {at} on");
        }
        told += &format!("; allowed: {}\n", self.oracle.describe(sector));
        let mut of_block = BTreeSet::new();
        for (moment, event) in &self.account.log.events[..self.events] {
            let line = match event {
                Event::Submitted { id, effects, durable } => {
                    let mut effects = effects.iter();
                    let Some((_, effect)) = effects.find(|(other, _)| *other == sector / SECTORS_PER_BLOCK)
                    else {
                        continue;
                    };
                    of_block.insert(*id);
                    format!("request {id} {}, durable {durable}", told_of(effect))
                }
                Event::Ended { id, .. } if !of_block.contains(id) => continue,
                Event::Ended { id, succeeded } => format!("request {id} ended, {succeeded}"),
                Event::FlushSubmitted { id } => format!("flush {id}"),
                Event::FlushEnded { id, succeeded } => format!("flush {id} ended, {succeeded}"),
                Event::Resized { blocks } => format!("grown to {blocks} blocks"),
            };
            told += &format!("  moment {moment}: {line}\n");
        }
        told
    }
}

fn told_of(effect: &Effect) -> String {
    match effect {
        Effect::Written(sectors) => {
            format!("writes sectors {:?}", sectors.iter().map(|(at, _)| at).collect::<Vec<_>>())
        }
        Effect::Nothing => "makes it nothing".to_owned(),
    }
}
