//! Copies a whole volume's content from and to a stream of frames (`strongroom-streams`), by which
//! it travels between two machines.

use std::io::{self, Read, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use strongroom_io::{
    Allocation, Channel, Disk, Done, Io, IoError, Limits, Plain, Request, TRANSFER_BYTES_MAX, Thread,
};
use strongroom_memory::Buffer;
use strongroom_streams::{Frame, FrameError, FrameReader, FrameWriter};
use strongroom_types::{Extent, SECTOR_BYTES};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::client::{Client, pieces};
use crate::transfer::{Progress, TransferError, data_runs, each_piece_of_data};

/// Why content did not arrive in a disk.
#[derive(Debug, Error)]
pub enum ArrivalError {
    /// The stream is not taken.
    #[error(transparent)]
    Stream(#[from] FrameError),
    /// The sender has failed.
    #[error("its sender has failed: {0}")]
    Sender(String),
    /// The disk failed, or the copy was stopped.
    #[error(transparent)]
    Transfer(#[from] TransferError),
}

/// Copies what a stream holds into a disk that reads as zeroes, and makes it durable. The progress
/// is in bytes of data. After an error the disk has some of it.
///
/// # Errors
/// [`ArrivalError`], also if the stream ends before its end.
pub fn import_stream(
    frames: &mut FrameReader<impl Read>,
    disk: &dyn Disk<Plain>,
    progress: &mut Progress<'_>,
) -> Result<(), ArrivalError> {
    let mut client = Client::open(disk)?;
    loop {
        progress.at(frames.data_bytes())?;
        match frames.next_frame()? {
            Frame::Data { extent, data } => {
                let mut rest = data;
                for piece in pieces(extent) {
                    let (now, later) = rest.split_at(piece.length() as usize);
                    rest = later;
                    client.write(piece, now)?;
                }
            }
            Frame::Failed(reason) => return Err(ArrivalError::Sender(reason)),
            Frame::End => break,
        }
    }
    client.flush()?;
    Ok(progress.at(frames.data_bytes())?)
}

/// Sends the data of a disk. The caller ends the stream.
///
/// # Errors
/// [`TransferError::File`] if the stream cannot be written, and the errors of the disk.
pub fn export_stream(
    disk: &dyn Disk<Plain>,
    frames: &mut FrameWriter<impl Write>,
    progress: &mut Progress<'_>,
) -> Result<(), TransferError> {
    let mut client = Client::open(disk)?;
    let mut send = |extent: Extent, read: Buffer| {
        data_runs(read.bytes()).try_for_each(|run| {
            let offset = extent.offset() + run.start as u64;
            frames.data(offset, &read.bytes()[run]).map_err(TransferError::File)
        })
    };
    each_piece_of_data(disk, |piece| {
        progress.at(piece.offset())?;
        client.read(piece, &mut send)
    })?;
    client.settle(0, &mut send)?;
    progress.at(disk.limits().size_bytes)
}

/// A disk that sends what is written to it, and keeps nothing: the destination of a copy on the
/// machine that has an image. It reads as zeroes, and takes each sector once.
pub struct SendingDisk<W> {
    sending: Arc<Sending<W>>,
}

struct Sending<W> {
    size_bytes: u64,
    frames: Mutex<Option<FrameWriter<W>>>,
    /// The first error of the stream, which is not the disk's.
    failed: Mutex<Option<io::Error>>,
}

impl<W: Write + Send + 'static> SendingDisk<W> {
    /// A disk of this size, whose content goes to `frames`.
    pub fn new(size_bytes: u64, frames: FrameWriter<W>) -> Self {
        let sending = Sending { size_bytes, frames: Mutex::new(Some(frames)), failed: Mutex::new(None) };
        Self { sending: Arc::new(sending) }
    }

    /// Takes back the stream, or the error that it had. Nothing can be written any more.
    ///
    /// # Errors
    /// The first error of the stream.
    pub fn end(&self) -> io::Result<FrameWriter<W>> {
        match self.sending.failed.lock().take() {
            Some(error) => Err(error),
            None => self.sending.frames.lock().take().ok_or_else(|| io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl<W: Write + Send> Sending<W> {
    fn limits(&self) -> Limits {
        Limits {
            size_bytes: self.size_bytes,
            block_bytes: SECTOR_BYTES as u32,
            preferred_bytes: TRANSFER_BYTES_MAX,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            read_only: false,
            discards: false,
        }
    }

    fn perform(&self, request: &mut Request<Plain>) -> Result<(), IoError> {
        self.limits().check(request)?;
        match request {
            Request::Read { into, .. } => {
                let length = into.len();
                into.fill_zero(0, length);
                Ok(())
            }
            Request::Write { extent, from, durable: _ } => {
                let mut data = Zeroizing::new(vec![0; from.len()]);
                from.copy_to(0, &mut data);
                self.send(*extent, &data)
            }
            // What does not come is zeroes, and no sector comes twice.
            Request::WriteZeroes { .. } | Request::Discard { .. } | Request::Flush => Ok(()),
        }
    }

    fn send(&self, extent: Extent, data: &[u8]) -> Result<(), IoError> {
        let mut frames = self.frames.lock();
        let gone = || IoError::from(Errno::PIPE);
        let writer = frames.as_mut().ok_or_else(gone)?;
        data_runs(data)
            .try_for_each(|run| writer.data(extent.offset() + run.start as u64, &data[run]))
            .map_err(|error| {
                *frames = None;
                *self.failed.lock() = Some(error);
                gone()
            })
    }
}

impl<W: Write + Send + 'static> Disk<Plain> for SendingDisk<W> {
    fn limits(&self) -> Limits {
        self.sending.limits()
    }

    fn open(&self, _: &Thread, _: usize) -> Result<Box<dyn Channel<Plain>>, IoError> {
        Ok(Box::new(SendingChannel { sending: Arc::clone(&self.sending), submitted: Vec::new() }))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        report(extent.intersection(Extent::between(0, self.sending.size_bytes)), Allocation::Hole);
        Ok(())
    }
}

struct SendingChannel<W> {
    sending: Arc<Sending<W>>,
    submitted: Vec<Io<Plain>>,
}

impl<W: Write + Send> Channel<Plain> for SendingChannel<W> {
    fn submit(&mut self, io: Io<Plain>) {
        self.submitted.push(io);
    }

    fn kick(&mut self) {}

    /// Waits for the stream: this thread has nothing else to do.
    fn poll(&mut self, done: &mut Vec<Done<Plain>>) {
        for mut io in self.submitted.drain(..) {
            let result = self.sending.perform(&mut io.request);
            done.push(io.end(result));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use strongroom_datastore::file::{
        Access, CreateOptions, OpenOptions, Protection, Provisioning, create, open,
    };
    use strongroom_streams::Pace;
    use strongroom_types::VolumeSize;

    use super::*;
    use crate::stack::assemble_destaged;
    use crate::transfer::import_file;

    const SIZE_BYTES: u64 = (5 << 20) + 512;
    const PACE: Pace = Pace { least_bytes: 1, window: Duration::from_secs(60) };

    fn disk(path: &Path, size_bytes: u64) -> Arc<dyn Disk<Plain>> {
        let (protection, size) = (Protection::Unencrypted, VolumeSize::new(size_bytes).unwrap());
        let options = CreateOptions {
            size,
            provisioning: Provisioning::Thin,
            protection,
            log_bytes: None,
            integrity: None,
        };
        create(path, &options).unwrap();
        let lock_wait = Duration::from_secs(10);
        let options = OpenOptions { protection, access: Access::ReadWrite, lock_wait, least_generation: 0 };
        assemble_destaged(open(path, &options).unwrap()).unwrap()
    }

    fn quietly<T>(work: impl FnOnce(&mut Progress<'_>) -> T) -> T {
        let stop = AtomicBool::new(false);
        work(&mut Progress { stop: &stop, report: &mut |_| {} })
    }

    #[test]
    fn an_image_travels_into_a_disk_and_out_of_it() {
        use std::os::unix::fs::FileExt;
        let directory = tempfile::tempdir().unwrap();
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(directory.path().join("image"))
            .unwrap();
        file.set_len(SIZE_BYTES).unwrap();
        file.write_all_at(b"first", 0).unwrap();
        file.write_all_at(&vec![0xA5; 3 << 20], (1 << 20) - 1000).unwrap();
        file.write_all_at(b"last", SIZE_BYTES - 4).unwrap();

        let sending = SendingDisk::new(SIZE_BYTES, FrameWriter::begin(Vec::new(), SIZE_BYTES).unwrap());
        quietly(|progress| import_file(&file, SIZE_BYTES, &sending, progress)).unwrap();
        let stream = sending.end().unwrap().finish().unwrap();
        assert!(stream.len() < 4 << 20, "zeroes are not sent: {}", stream.len());
        let arrived = disk(&directory.path().join("vm1"), SIZE_BYTES);
        let mut frames = FrameReader::begin(&stream[..], SIZE_BYTES, PACE).unwrap();
        quietly(|progress| import_stream(&mut frames, &*arrived, progress)).unwrap();

        let mut frames = FrameWriter::begin(Vec::new(), SIZE_BYTES).unwrap();
        quietly(|progress| export_stream(&*arrived, &mut frames, progress)).unwrap();
        let stream = frames.finish().unwrap();
        let mut content = vec![0; SIZE_BYTES as usize];
        let mut frames = FrameReader::begin(&stream[..], SIZE_BYTES, PACE).unwrap();
        while let Frame::Data { extent, data } = frames.next_frame().unwrap() {
            content[extent.offset() as usize..extent.end() as usize].copy_from_slice(data);
        }
        assert!(content == std::fs::read(directory.path().join("image")).unwrap());
    }

    #[test]
    fn what_breaks_off_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let mut frames = FrameWriter::begin(Vec::new(), SIZE_BYTES).unwrap();
        frames.data(0, &[1; 4096]).unwrap();
        let mut stream = frames.finish().unwrap();
        stream.truncate(stream.len() - 1);
        let disk = disk(&directory.path().join("vm1"), SIZE_BYTES);
        let mut frames = FrameReader::begin(&stream[..], SIZE_BYTES, PACE).unwrap();
        let broken = quietly(|progress| import_stream(&mut frames, &*disk, progress)).unwrap_err();
        assert!(matches!(broken, ArrivalError::Stream(FrameError::BrokeOff(_))), "{broken}");
        let mut failed = Vec::new();
        FrameWriter::begin(&mut failed, SIZE_BYTES).unwrap().fail(b"no").unwrap();
        let mut frames = FrameReader::begin(&failed[..], SIZE_BYTES, PACE).unwrap();
        let broken = quietly(|progress| import_stream(&mut frames, &*disk, progress)).unwrap_err();
        assert!(matches!(&broken, ArrivalError::Sender(reason) if reason == "no"), "{broken}");
    }

    #[test]
    fn a_stream_that_is_gone_is_reported_as_such() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                // The head of the stream, and then nothing.
                if bytes.len() > 8 { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(bytes.len()) }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let sending = SendingDisk::new(SIZE_BYTES, FrameWriter::begin(Gone, SIZE_BYTES).unwrap());
        let written = sending.sending.send(Extent::between(0, 512), &[1; 512]);
        assert_eq!(written, Err(IoError::from(Errno::PIPE)));
        assert_eq!(sending.end().unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}
