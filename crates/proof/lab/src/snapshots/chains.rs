//! The speed of reads through a chain of layers, each with an equal part of the content at random,
//! beside one layer with the same content. The part is in blocks, which is the worst case for reads
//! in order, or in larger pieces, as guests' file systems write. All of a disk is read once before
//! its reads are measured.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::config::{SnapshotsConfig, shown_bytes};
use crate::datapath::disks::{connect, failed};
use crate::datapath::guest_load::{GuestLoad, Guests, Order, Pattern};
use crate::datapath::subjects::{GuestSession, Running};
use crate::first_writes::order::Shuffled;
use crate::first_writes::product::Product;
use crate::first_writes::session::{BLOCK_BYTES, Session as Guest};
use crate::service::Service;
use crate::study::{Baseline, Disk, Metric, ReportSettings, Session, Study, Subject, SubjectError, Workload};
use crate::vhost_user::guest::Pages;
use crate::vhost_user::prepared::Lengths;

/// The layers of a chain, with the top.
pub const DEPTH: u32 = 8;

/// One layer of ours.
pub const FLAT: &str = "strongroom, one layer";
/// A chain of ours.
pub const CHAIN: &str = "strongroom, 8 layers";
/// A chain of ours of which each layer has larger pieces.
pub const CHAIN_OF_PIECES: &str = "strongroom, 8 layers in pieces of 1 MiB";
const QCOW2_FLAT: &str = "qcow2 with LUKS, one image";
/// The other's chain.
pub const QCOW2_CHAIN: &str = "qcow2 with LUKS, 7 backing files";

/// Reads at random.
pub const RANDOM: &str = "4 KiB random read, depth 32";
/// Reads in order.
pub const SEQUENTIAL: &str = "64 KiB sequential read, depth 8";

/// Requests in flight while disks are written.
const WRITE_DEPTH: u16 = 32;
const SEED: u64 = 8;

/// The blocks of a larger piece.
const PIECE_BLOCKS: u32 = (1 << 20) / BLOCK_BYTES as u32;

/// The load of a guest, for parts that measure IOPS.
pub struct GuestWorkload {
    /// Its name.
    pub name: &'static str,
    /// Its requests.
    pub pattern: Pattern,
    /// The metric by which subjects are compared first.
    pub headline: Metric,
}

impl GuestWorkload {
    /// Requests of 4 KiB at random, 32 of them in flight.
    pub(super) fn random(name: &'static str, reads_percent: u8) -> Self {
        let pattern = Pattern { order: Order::Random, reads_percent, block_bytes: 4096, depth: 32 };
        Self { name, pattern, headline: Metric::OperationsPerSecond }
    }
}

impl Workload for GuestWorkload {
    fn name(&self) -> &str {
        self.name
    }

    fn headline(&self) -> Metric {
        self.headline
    }

    fn must_saturate(&self) -> bool {
        true
    }
}

/// Guests as QEMU has them.
pub(super) const GUESTS: Guests =
    Guests { queues: 1, pages: Pages::Huge, spin: Duration::ZERO, lengths: Lengths::Same };

/// The study, with its disks made and written.
pub fn study<'study>(
    config: &'study SnapshotsConfig,
    progress: &dyn Fn(&str),
) -> Result<Study<'study, GuestWorkload>, SubjectError> {
    let device = Disk::under(&config.scratch)?;
    let mut subjects: Vec<Box<dyn Subject<GuestWorkload> + 'study>> = Vec::new();
    let mut add = |name: &'static str, layout: Layout, product: Box<dyn Product>| {
        progress(&format!("writing a disk of {} for {name}", shown_bytes(config.sizes.chain)));
        let directory = config.fresh_directory(&format!("chains-{}", subjects.len()))?;
        let chain =
            Chain { name, product, disk: directory.join("disk"), directory, device: device.clone(), config };
        chain.write(layout)?;
        subjects.push(Box::new(chain));
        Ok::<(), SubjectError>(())
    };
    let flat = Layout { layers: 1, piece_blocks: 1 };
    let chain = Layout { layers: DEPTH, ..flat };
    let of_pieces = Layout { piece_blocks: PIECE_BLOCKS, ..chain };
    add(FLAT, flat, Box::new(config.strongroom(FLAT, true)))?;
    add(CHAIN, chain, Box::new(config.strongroom(CHAIN, true)))?;
    add(CHAIN_OF_PIECES, of_pieces, Box::new(config.strongroom(CHAIN_OF_PIECES, true)))?;
    if config.has_peers {
        add(QCOW2_FLAT, flat, Box::new(config.qcow2(QCOW2_FLAT)))?;
        add(QCOW2_CHAIN, chain, Box::new(config.qcow2(QCOW2_CHAIN)))?;
    }
    let in_order = Pattern { order: Order::Sequential, reads_percent: 100, block_bytes: 64 << 10, depth: 8 };
    let workloads = vec![
        GuestWorkload::random(RANDOM, 100),
        GuestWorkload { name: SEQUENTIAL, pattern: in_order, headline: Metric::MegabytesPerSecond },
    ];
    Ok(Study {
        name: "snapshots, chains".to_owned(),
        settings: BTreeMap::from([("a disk".to_owned(), shown_bytes(config.sizes.chain))]),
        subjects,
        workloads,
        pace: config.pace(),
    })
}

/// Ratios are to one layer of each product, and to the other product's chain.
pub fn report_settings() -> ReportSettings {
    let baseline =
        |title: &str, subject: &str| Baseline { title: title.to_owned(), subjects: vec![subject.to_owned()] };
    ReportSettings::new(vec![
        baseline("one layer", FLAT),
        baseline("one image", QCOW2_FLAT),
        baseline("7 backing files", QCOW2_CHAIN),
    ])
}

/// How the content of a disk is in layers.
#[derive(Clone, Copy)]
struct Layout {
    layers: u32,
    /// The blocks of a piece, which is in one layer.
    piece_blocks: u32,
}

/// A disk, whose content is the same in any number of layers.
struct Chain<'study> {
    name: &'static str,
    product: Box<dyn Product>,
    disk: PathBuf,
    directory: PathBuf,
    device: Option<Disk>,
    config: &'study SnapshotsConfig,
}

impl Chain<'_> {
    /// Writes each block once, in pieces at random, an equal part of them into each layer.
    fn write(&self, Layout { layers, piece_blocks }: Layout) -> Result<(), SubjectError> {
        let Self { product, disk, config, .. } = self;
        product.create(disk, config.sizes.chain)?;
        let place = config.place(&self.directory, WRITE_DEPTH);
        let blocks = (config.sizes.chain / BLOCK_BYTES) as u32;
        let shuffled = || Shuffled::in_pieces(blocks, piece_blocks, BLOCK_BYTES, SEED);
        let mut order = shuffled();
        for layer in 0..layers {
            let mut guest = Guest::open(&place, &**product, disk)?;
            guest.set_pass(SEED);
            let part = u64::from(blocks.div_ceil(layers));
            guest.write(&mut order, part)?;
            guest.settle()?;
            let is_last = layer + 1 == layers;
            if is_last {
                guest.verify(shuffled(), blocks.into())?;
            }
            guest.close()?;
            if !is_last {
                product.snapshot(disk, &format!("s{layer}"))?;
            }
        }
        Ok(())
    }
}

impl Subject<GuestWorkload> for Chain<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn supports(&self, _: &GuestWorkload) -> bool {
        true
    }

    fn open(&mut self, workload: &GuestWorkload) -> Result<Box<dyn Session + '_>, SubjectError> {
        let Self { name, product, disk, directory, device, config } = self;
        let mut session = serve(name, &**product, disk, directory, workload, device.as_ref(), config)?;
        if let Err(error) = session.load.read_all() {
            return Err(failed(&session.running.0[0], error).into());
        }
        Ok(Box::new(session))
    }
}

/// Serves a disk to a guest that loads it.
pub(super) fn serve<'study>(
    name: &str,
    product: &dyn Product,
    disk: &Path,
    directory: &Path,
    workload: &GuestWorkload,
    device: Option<&'study Disk>,
    config: &SnapshotsConfig,
) -> Result<GuestSession<'study>, SubjectError> {
    let socket = config.socket(directory);
    // A killed server has left its socket there.
    let _ = std::fs::remove_file(&socket);
    let command = product.serve(disk, &socket, GUESTS.queues);
    let service = Service::start(name, command, &socket, &directory.join("server.log"))?;
    let mut running = Running(vec![service]);
    let pattern = workload.pattern;
    let connected = running.0[0].connect(&config.stop, |socket: &Path| connect(socket, pattern, GUESTS));
    let load = GuestLoad::new(vec![connected?], pattern, GUESTS, Arc::clone(&config.stop));
    let load = load.map_err(|error| failed(&running.0[0], error))?;
    Ok(GuestSession { load, running, device })
}
