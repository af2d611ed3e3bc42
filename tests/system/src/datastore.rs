//! What an attacker who holds, copies or steals a datastore can see.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::SeekFrom as Region;

/// The unit of `st_blocks`, whatever the file system's block size (`stat(2)`).
const STAT_BLOCK_BYTES: u64 = 512;

/// The size of a read, which is large compared with the overlap between two reads.
const CHUNK_BYTES: usize = 1 << 20;

/// The space that all files under `directory` take on their file system, in bytes: a file with
/// several names once. Discards give it back.
pub fn allocated_bytes(directory: &Path) -> u64 {
    let files = files_under(directory).iter().map(|path| metadata(path)).collect::<Vec<_>>();
    let mut counted = HashSet::new();
    let once = files.iter().filter(|file| counted.insert((file.dev(), file.ino())));
    once.map(|file| file.blocks() * STAT_BLOCK_BYTES).sum()
}

/// How often `needle` occurs in the files under `directory`. Holes are skipped, so a sparse file is
/// quick to search.
pub fn occurrences(directory: &Path, needle: &[u8]) -> usize {
    assert!(!needle.is_empty() && needle.len() < CHUNK_BYTES, "a marker is a short string");
    // A merge in the background may have removed a file since it was listed.
    let open = |path: &PathBuf| match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        opened => Some(opened.unwrap_or_else(|error| panic!("cannot open {}: {error}", path.display()))),
    };
    files_under(directory).iter().filter_map(open).map(|file| occurrences_in_open(file, needle)).sum()
}

/// All regular files under `directory`, at any depth.
pub fn files_under(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut unread = vec![directory.to_owned()];
    while let Some(directory) = unread.pop() {
        let entries = fs::read_dir(&directory)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", directory.display()));
        for entry in entries {
            let entry = entry.unwrap_or_else(|error| panic!("cannot read {}: {error}", directory.display()));
            let file_type = entry.file_type().expect("a directory entry has a type");
            if file_type.is_dir() {
                unread.push(entry.path());
            } else if file_type.is_file() {
                files.push(entry.path());
            }
        }
    }
    files
}

/// As [`occurrences`], in one file.
pub fn occurrences_in(path: &Path, needle: &[u8]) -> usize {
    let file = File::open(path).unwrap_or_else(|error| panic!("cannot open {}: {error}", path.display()));
    occurrences_in_open(file, needle)
}

fn occurrences_in_open(mut file: File, needle: &[u8]) -> usize {
    let mut count = 0;
    let mut position = 0;
    // Data regions are disjoint and consist of whole blocks, so there are only zeroes between two
    // of them.
    while let Ok(start) = rustix::fs::seek(&file, Region::Data(position)) {
        let end = rustix::fs::seek(&file, Region::Hole(start)).expect("a data region has an end");
        count += occurrences_in_region(&mut file, start, end, needle);
        position = end;
    }
    count
}

fn occurrences_in_region(file: &mut File, start: u64, end: u64, needle: &[u8]) -> usize {
    file.seek(SeekFrom::Start(start)).expect("a file can be sought in");
    let mut region = file.take(end - start);
    let mut window = Vec::with_capacity(CHUNK_BYTES + needle.len());
    let mut count = 0;
    loop {
        let kept = window.len();
        let read =
            region.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut window).expect("the file can be read");
        if read == 0 {
            return count;
        }
        count += occurrences_in_bytes(&window, needle);
        // An occurrence across two reads begins in the last bytes of the first; none is entirely
        // within them.
        let keep = window.len().min(needle.len() - 1);
        window.drain(..window.len() - keep);
        debug_assert!(kept < needle.len());
    }
}

fn occurrences_in_bytes(bytes: &[u8], needle: &[u8]) -> usize {
    // Comparing first bytes first makes this several times faster than comparing windows.
    bytes
        .iter()
        .enumerate()
        .filter(|(start, byte)| **byte == needle[0] && bytes[*start..].starts_with(needle))
        .count()
}

fn metadata(path: &Path) -> fs::Metadata {
    fs::metadata(path).unwrap_or_else(|error| panic!("cannot stat {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn counts_across_reads_and_holes_in_every_file() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("vm1")).unwrap();
        let sparse = File::create(directory.path().join("vm1/layer")).unwrap();
        sparse.write_all_at(b"MARKER", CHUNK_BYTES as u64 - 3).unwrap();
        sparse.write_all_at(b"MARKER-MARKER", 64 << 20).unwrap();
        fs::write(directory.path().join("descriptor"), b"MARKE MARKER").unwrap();
        assert_eq!(occurrences(directory.path(), b"MARKER"), 4);
        assert_eq!(occurrences(directory.path(), b"MARKERS"), 0);
    }

    #[test]
    fn allocated_bytes_are_those_written() {
        let directory = tempfile::tempdir().unwrap();
        let file = File::create(directory.path().join("layer")).unwrap();
        file.set_len(1 << 30).unwrap();
        assert_eq!(allocated_bytes(directory.path()), 0);
        file.write_all_at(&[1; 1 << 16], 1 << 20).unwrap();
        file.sync_all().unwrap();
        let allocated = allocated_bytes(directory.path());
        assert!((1 << 16..1 << 20).contains(&allocated), "{allocated}");
    }
}
