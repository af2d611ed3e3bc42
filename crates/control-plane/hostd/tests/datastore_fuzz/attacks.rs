//! The attacks of someone who can write to the datastore.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rand::Rng;
use rand::rngs::StdRng;

use super::site::{BLOCK, CHOSEN, Site, copy, copy_file};

/// Numbers that are likely to break arithmetic.
const NUMBERS: [u64; 6] = [0, 1, u64::MAX, i64::MAX as u64, 1 << 32, (1 << 46) + 4096];
/// Names that a volume's directory may contain at some time.
const PLACES: [&str; 6] =
    ["descriptor.new", "descriptor.spare-0", "control", "vm.json.new", "stranger", "log-x"];

#[derive(Clone, Debug)]
pub enum Attack {
    Flipped {
        file: PathBuf,
        at: u64,
        bit: u8,
    },
    Overwritten {
        file: PathBuf,
        at: u64,
        with: Vec<u8>,
    },
    Blanked {
        file: PathBuf,
    },
    Cut {
        file: PathBuf,
        bytes: u64,
    },
    Longer {
        file: PathBuf,
        by: u64,
    },
    Removed {
        path: PathBuf,
    },
    Exchanged {
        one: PathBuf,
        other: PathBuf,
    },
    Copied {
        from: PathBuf,
        to: PathBuf,
    },
    PutBack {
        path: PathBuf,
    },
    Edited {
        file: PathBuf,
        pointer: usize,
        with: Edit,
    },
    LinkedTo {
        path: PathBuf,
        target: PathBuf,
    },
    /// A second name of a file in the same file system.
    HardLinked {
        path: PathBuf,
        target: PathBuf,
    },
    Directory {
        path: PathBuf,
    },
    Fifo {
        path: PathBuf,
    },
    Socket {
        path: PathBuf,
    },
}

/// An edit of a JSON value.
#[derive(Clone, Copy, Debug)]
pub enum Edit {
    Number(u64),
    Removed,
    Text,
    Null,
    /// Replaces it by the value beside it.
    Neighbour,
}

/// Draws some attacks, often on one kind of file.
pub fn draw(site: &Site, random: &mut StdRng) -> Vec<Attack> {
    let entries = site.entries();
    let count = [1, 1, 1, 2, 3][random.random_range(0..5)];
    (0..count).map(|_| one(site, &entries, random)).collect()
}

fn pick<'a>(random: &mut StdRng, among: &'a [PathBuf]) -> &'a PathBuf {
    &among[random.random_range(0..among.len())]
}

fn one(site: &Site, entries: &[PathBuf], random: &mut StdRng) -> Attack {
    let files: Vec<PathBuf> = entries.iter().filter(|path| path.is_file()).cloned().collect();
    let directories: Vec<PathBuf> = entries.iter().filter(|path| path.is_dir()).cloned().collect();
    let file = pick(random, &files).clone();
    let length = fs::metadata(&file).map_or(0, |metadata| metadata.len());
    // Where a format has its fields: at the beginning, or at a block boundary.
    let at = match random.random_range(0..3) {
        0 => random.random_range(0..length.max(1)),
        1 => random.random_range(0..length.clamp(1, 256)),
        _ => random.random_range(0..length.max(1)) / BLOCK as u64 * BLOCK as u64,
    };
    let path = pick(random, entries).clone();
    let place = pick_place(&directories, random);
    let outside = [site.outside().join("canary"), site.outside().join("volume"), site.outside().join("vm")];
    match random.random_range(0..24) {
        0..2 => Attack::Flipped { file, at, bit: random.random_range(0..8) },
        2 => {
            let with = (0..random.random_range(1..5000)).map(|_| random.random()).collect();
            Attack::Overwritten { file, at, with }
        }
        3..5 => {
            let with = CHOSEN.iter().copied().cycle().take(random.random_range(1..4) * BLOCK).collect();
            Attack::Overwritten { file, at: at / 16 * 16, with }
        }
        5 => Attack::Overwritten { file, at, with: vec![0; random.random_range(1..3) * BLOCK] },
        6 => {
            let number = NUMBERS[random.random_range(0..NUMBERS.len())];
            Attack::Overwritten { file, at: at / 8 * 8, with: number.to_le_bytes().to_vec() }
        }
        7 => Attack::Blanked { file },
        8 => Attack::Cut { bytes: random.random_range(0..=length), file },
        9 => Attack::Longer { file, by: [1, 4096, 1 << 30, 1 << 45][random.random_range(0..4)] },
        10..12 => Attack::Removed { path },
        12..14 => {
            let same = |other: &&PathBuf| kind_of(other) == kind_of(&file) && **other != file;
            let others: Vec<_> = files.iter().filter(same).cloned().collect();
            let other = if others.is_empty() { file.clone() } else { pick(random, &others).clone() };
            if random.random() {
                Attack::Exchanged { one: file, other }
            } else {
                Attack::Copied { from: other, to: file }
            }
        }
        14..16 => {
            let (one, other) = (pick(random, &directories).clone(), pick(random, &directories).clone());
            let apart = !one.starts_with(&other) && !other.starts_with(&one);
            if !apart {
                Attack::Blanked { file }
            } else if random.random() {
                Attack::Exchanged { one, other }
            } else {
                Attack::Copied { from: other, to: one }
            }
        }
        16..18 => Attack::PutBack { path },
        18..20 => {
            let json: Vec<_> = files.iter().filter(|file| file.ends_with("vm.json")).cloned().collect();
            let with = match random.random_range(0..5) {
                0 => Edit::Number(NUMBERS[random.random_range(0..NUMBERS.len())]),
                1 => Edit::Removed,
                2 => Edit::Text,
                3 => Edit::Null,
                _ => Edit::Neighbour,
            };
            Attack::Edited { file: pick(random, &json).clone(), pointer: random.random_range(0..1000), with }
        }
        20 => {
            let target = match random.random_range(0..3) {
                0 => outside[random.random_range(0..3)].clone(),
                1 => pick(random, entries).clone(),
                _ => PathBuf::from("nowhere"),
            };
            let path = if random.random() { path } else { place };
            Attack::LinkedTo { path, target }
        }
        21 => Attack::HardLinked { path: file.clone(), target: pick(random, &files).clone() },
        22 => Attack::Fifo { path: if random.random() { path } else { place } },
        _ if random.random() => Attack::Directory { path: place },
        _ => Attack::Socket { path },
    }
}

fn pick_place(directories: &[PathBuf], random: &mut StdRng) -> PathBuf {
    pick(random, directories).join(PLACES[random.random_range(0..PLACES.len())])
}

/// The kind of a file by its name: `layer`, `log`, `descriptor`, ….
pub fn kind_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.split('-').next().unwrap_or_default().to_owned()
}

fn remove(path: &Path) {
    let Ok(metadata) = path.symlink_metadata() else { return };
    let removed = if metadata.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.unwrap();
}

impl Attack {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Flipped { .. } => "attack: a bit flipped",
            Self::Overwritten { .. } => "attack: bytes overwritten",
            Self::Blanked { .. } => "attack: a file blanked",
            Self::Cut { .. } => "attack: a file cut",
            Self::Longer { .. } => "attack: a file made longer",
            Self::Removed { .. } => "attack: a file or directory removed",
            Self::Exchanged { .. } => "attack: two files or directories exchanged",
            Self::Copied { .. } => "attack: a file or directory in place of another",
            Self::PutBack { .. } => "attack: an older state put back",
            Self::Edited { .. } => "attack: a configuration edited",
            Self::LinkedTo { .. } => "attack: a symbolic link",
            Self::HardLinked { .. } => "attack: a second name of a file",
            Self::Directory { .. } => "attack: a directory in place of a file",
            Self::Fifo { .. } => "attack: a FIFO",
            Self::Socket { .. } => "attack: a socket",
        }
    }

    /// Does nothing if an earlier attack has made this one impossible.
    pub fn carry_out(&self, site: &Site) {
        let is_plain = |path: &Path| path.symlink_metadata().is_ok_and(|metadata| metadata.is_file());
        let is_there = |path: &Path| path.symlink_metadata().is_ok();
        let can_be_made = |path: &Path| {
            path.parent()
                .is_some_and(|parent| parent.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()))
        };
        match self {
            Self::Flipped { file, at, bit } if is_plain(file) => {
                let opened = OpenOptions::new().read(true).write(true).open(file).unwrap();
                let mut byte = [0];
                if opened.read_at(&mut byte, *at).unwrap() == 1 {
                    opened.write_all_at(&[byte[0] ^ 1 << bit], *at).unwrap();
                }
            }
            Self::Overwritten { file, at, with } if is_plain(file) => {
                OpenOptions::new().write(true).open(file).unwrap().write_all_at(with, *at).unwrap();
            }
            Self::Blanked { file } if is_plain(file) => {
                let length = fs::metadata(file).unwrap().len();
                File::create(file).unwrap().set_len(length).unwrap();
            }
            Self::Cut { file, bytes } if is_plain(file) => {
                OpenOptions::new().write(true).open(file).unwrap().set_len(*bytes).unwrap();
            }
            Self::Longer { file, by } if is_plain(file) => {
                let opened = OpenOptions::new().write(true).open(file).unwrap();
                // Some file systems do not support such long files.
                let _ = opened.set_len(fs::metadata(file).unwrap().len() + by);
            }
            Self::Removed { path } => remove(path),
            Self::Exchanged { one, other } if is_there(one) && is_there(other) && one != other => {
                let aside = site.datastore().join("aside");
                fs::rename(one, &aside).unwrap();
                if can_be_made(other) {
                    fs::rename(other, one).unwrap();
                    fs::rename(&aside, other).unwrap();
                }
            }
            Self::Copied { from, to } if is_there(from) && can_be_made(to) && from != to => {
                put(from, to);
            }
            Self::PutBack { path } if can_be_made(path) && site.older(path).symlink_metadata().is_ok() => {
                put(&site.older(path), path);
            }
            Self::Edited { file, pointer, with } if is_plain(file) => edit(file, *pointer, *with),
            Self::LinkedTo { path, target } if can_be_made(path) => {
                remove(path);
                symlink(target, path).unwrap();
            }
            Self::HardLinked { path, target } if is_plain(target) && can_be_made(path) && path != target => {
                remove(path);
                fs::hard_link(target, path).unwrap();
            }
            Self::Directory { path } if can_be_made(path) => {
                remove(path);
                fs::create_dir(path).unwrap();
            }
            Self::Fifo { path } if can_be_made(path) => {
                remove(path);
                let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
                rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
            }
            Self::Socket { path } if can_be_made(path) => {
                remove(path);
                // Too long a path cannot be a socket's.
                let _ = UnixListener::bind(path);
            }
            _ => {}
        }
    }

    /// The paths that it involves.
    pub fn touches(&self) -> Vec<&Path> {
        match self {
            Self::Flipped { file, .. }
            | Self::Overwritten { file, .. }
            | Self::Blanked { file }
            | Self::Cut { file, .. }
            | Self::Longer { file, .. }
            | Self::Edited { file, .. } => vec![file],
            Self::Removed { path }
            | Self::PutBack { path }
            | Self::Directory { path }
            | Self::Fifo { path }
            | Self::Socket { path } => vec![path],
            Self::Exchanged { one, other } | Self::Copied { from: other, to: one } => vec![one, other],
            Self::LinkedTo { path, target } | Self::HardLinked { path, target } => vec![path, target],
        }
    }
}

fn put(from: &Path, to: &Path) {
    if from.starts_with(to) || to.starts_with(from) {
        return;
    }
    let Ok(metadata) = from.symlink_metadata() else { return };
    remove(to);
    if metadata.is_dir() {
        copy(from, to);
    } else if metadata.is_file() {
        copy_file(from, to);
    }
}

/// Changes one value of a JSON file.
fn edit(file: &Path, pointer: usize, with: Edit) {
    let Ok(mut text) = serde_json::from_slice::<serde_json::Value>(&fs::read(file).unwrap()) else { return };
    let mut pointers = Vec::new();
    values(&text, "", &mut pointers);
    let pointer = &pointers[pointer % pointers.len()];
    let neighbour = pointers.get(pointers.len() / 2).and_then(|other| text.pointer(other)).cloned();
    if let (Edit::Removed, Some((above, name))) = (with, pointer.rsplit_once('/')) {
        match text.pointer_mut(above) {
            Some(serde_json::Value::Object(parts)) => drop(parts.remove(name)),
            Some(serde_json::Value::Array(parts)) => drop(parts.pop()),
            _ => {}
        }
    } else if let Some(value) = text.pointer_mut(pointer) {
        *value = match (with, &*value) {
            (Edit::Number(number), _) => number.into(),
            (Edit::Text, serde_json::Value::String(text)) => text.replace(['0', '1'], "2").into(),
            (Edit::Text, _) => "unencrypted".into(),
            (Edit::Null | Edit::Removed, _) => serde_json::Value::Null,
            (Edit::Neighbour, _) => neighbour.unwrap_or_default(),
        };
    }
    File::create(file).unwrap().write_all(&serde_json::to_vec(&text).unwrap()).unwrap();
}

/// Returns JSON pointers to all values, including objects and arrays.
fn values(value: &serde_json::Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        serde_json::Value::Object(parts) => {
            parts.iter().for_each(|(name, part)| values(part, &format!("{at}/{name}"), found));
        }
        serde_json::Value::Array(parts) => {
            parts.iter().enumerate().for_each(|(index, part)| values(part, &format!("{at}/{index}"), found));
        }
        _ => {}
    }
}
