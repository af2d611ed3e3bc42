//! The content of a device: cheap to copy, because copies share unchanged chunks.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::write_log::Change;

const CHUNK: usize = 4096;

#[derive(Clone)]
pub struct Image {
    /// `None` stands for zeroes.
    chunks: Vec<Option<Arc<[u8; CHUNK]>>>,
}

impl Image {
    /// Reads a file, whose length is a multiple of 4096 bytes.
    pub fn read_from(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut image = Self { chunks: vec![None; length as usize / CHUNK] };
        let mut at = 0;
        while at < length {
            let data = match seek(&file, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(Errno::NXIO) => break,
                Err(errno) => return Err(errno.into()),
            };
            let hole = seek(&file, SeekFrom::Hole(data))?;
            let mut bytes = vec![0; (hole - data) as usize];
            file.read_exact_at(&mut bytes, data)?;
            image.write(data, &bytes);
            at = hole;
        }
        Ok(image)
    }

    /// Writes it to a file, replacing the content.
    pub fn write_to(&self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.length())?;
        for (index, chunk) in self.chunks.iter().enumerate() {
            if let Some(chunk) = chunk {
                file.write_all_at(&chunk[..], (index * CHUNK) as u64)?;
            }
        }
        Ok(())
    }

    pub fn length(&self) -> u64 {
        (self.chunks.len() * CHUNK) as u64
    }

    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Nothing => {}
            Change::Write { offset, bytes } => self.write(*offset, bytes),
            Change::Discard { offset, length } => self.zero(*offset, *length),
        }
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut rest = bytes;
        let mut at = offset as usize;
        while !rest.is_empty() {
            let within = at % CHUNK;
            let (now, later) = rest.split_at(rest.len().min(CHUNK - within));
            let chunk = &mut self.chunks[at / CHUNK];
            if now.len() == CHUNK && now.iter().all(|byte| *byte == 0) {
                *chunk = None;
            } else {
                let chunk = chunk.get_or_insert_with(|| Arc::new([0; CHUNK]));
                Arc::make_mut(chunk)[within..within + now.len()].copy_from_slice(now);
            }
            (at, rest) = (at + now.len(), later);
        }
    }

    /// Zeroes a discarded range.
    pub fn zero(&mut self, offset: u64, length: u64) {
        let mut at = offset as usize;
        let end = (offset + length) as usize;
        while at < end {
            let within = at % CHUNK;
            let now = (end - at).min(CHUNK - within);
            match &mut self.chunks[at / CHUNK] {
                chunk if now == CHUNK => *chunk = None,
                Some(chunk) => Arc::make_mut(chunk)[within..within + now].fill(0),
                None => {}
            }
            at += now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_what_the_other_changes_and_both_survive_a_file() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("image");
        File::create(&path).unwrap().set_len(16 << 10).unwrap();
        let mut image = Image::read_from(&path).unwrap();
        image.write(4000, &[1; 5000]);
        let before = image.clone();
        image.zero(4096, 4608);
        image.write_to(&path).unwrap();
        let mut expected = vec![0; 16 << 10];
        expected[4000..4096].fill(1);
        expected[8704..9000].fill(1);
        assert_eq!(std::fs::read(&path).unwrap(), expected);
        before.write_to(&path).unwrap();
        expected[4000..9000].fill(1);
        assert_eq!(std::fs::read(&path).unwrap(), expected);
        Image::read_from(&path).unwrap().write_to(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), expected);
    }
}
