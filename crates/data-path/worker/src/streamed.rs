//! Copies a whole volume's content to a stream of frames (`strongroom-streams`), by which it
//! travels to another machine.

use std::io::Write;

use strongroom_io::{Disk, Plain};
use strongroom_memory::Buffer;
use strongroom_streams::FrameWriter;
use strongroom_types::Extent;

use crate::client::Client;
use crate::transfer::{Progress, TransferError, data_runs, each_piece_of_data};

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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use strongroom_datastore::file::{
        Access, CreateOptions, OpenOptions, Protection, Provisioning, create, open,
    };
    use strongroom_streams::{Frame, FrameReader, Pace};
    use strongroom_types::VolumeSize;

    use super::*;
    use crate::stack::assemble_destaged;
    use crate::transfer::import_file;

    const SIZE_BYTES: u64 = (5 << 20) + 512;
    const PACE: Pace = Pace { least_bytes: 1, window: Duration::from_secs(60) };

    #[test]
    fn a_disk_travels_without_its_zeroes() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(&image).unwrap();
        file.set_len(SIZE_BYTES).unwrap();
        file.write_all_at(b"first", 0).unwrap();
        file.write_all_at(&vec![0xA5; 3 << 20], (1 << 20) - 1000).unwrap();
        file.write_all_at(b"last", SIZE_BYTES - 4).unwrap();
        let path = directory.path().join("vm1");
        let (protection, size) = (Protection::Unencrypted, VolumeSize::new(SIZE_BYTES).unwrap());
        let provisioning = Provisioning::Thin;
        create(&path, &CreateOptions { size, provisioning, protection, log_bytes: None, integrity: None })
            .unwrap();
        let lock_wait = Duration::from_secs(10);
        let options = OpenOptions { protection, access: Access::ReadWrite, lock_wait, least_generation: 0 };
        let disk = assemble_destaged(open(&path, &options).unwrap()).unwrap();
        let stop = AtomicBool::new(false);
        let mut progress = Progress { stop: &stop, report: &mut |_| {} };
        import_file(&file, SIZE_BYTES, &*disk, &mut progress).unwrap();

        let mut frames = FrameWriter::begin(Vec::new(), SIZE_BYTES).unwrap();
        export_stream(&*disk, &mut frames, &mut progress).unwrap();
        let stream = frames.finish().unwrap();
        assert!(stream.len() < 4 << 20, "zeroes are not sent: {}", stream.len());
        let mut content = vec![0; SIZE_BYTES as usize];
        let mut frames = FrameReader::begin(&stream[..], SIZE_BYTES, PACE).unwrap();
        while let Frame::Data { extent, data } = frames.next_frame().unwrap() {
            content[extent.offset() as usize..extent.end() as usize].copy_from_slice(data);
        }
        assert!(content == std::fs::read(image).unwrap());
    }
}
