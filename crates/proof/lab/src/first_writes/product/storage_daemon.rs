//! Images of QEMU's, and its storage daemon.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{LogFacts, Product};
use crate::first_writes::error::StudyError;
use crate::programs::option_value;
use crate::qemu_img;

/// The format of a QEMU image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// qcow2 with LUKS.
    Qcow2Luks,
    /// Raw, sparse.
    Raw,
}

/// Images of QEMU's, served by its storage daemon with O_DIRECT and io_uring.
pub struct StorageDaemon {
    /// Its name in reports.
    pub name: String,
    /// The format of images.
    pub format: ImageFormat,
    /// The passphrase of all images.
    pub passphrase_file: PathBuf,
}

/// Where a qcow2's header has the size of its disk, as a big-endian number (QEMU's
/// `docs/interop/qcow2.txt`).
const QCOW2_SIZE_AT: u64 = 24;

impl StorageDaemon {
    fn secret(&self) -> String {
        format!("secret,id=passphrase,file={}", option_value(&self.passphrase_file))
    }

    /// The image, and the overlays of its snapshots, from below.
    fn layers(place: &Path) -> Vec<PathBuf> {
        let overlays = (1..).map(|number| Self::overlay(place, number)).take_while(|path| path.exists());
        std::iter::once(place.to_owned()).chain(overlays).collect()
    }

    fn overlay(place: &Path, number: usize) -> PathBuf {
        let mut path = place.as_os_str().to_owned();
        path.push(format!(".{number}"));
        path.into()
    }

    /// The size of a disk, from its lowest image.
    fn disk_bytes(&self, place: &Path) -> io::Result<u64> {
        let mut file = File::open(place)?;
        match self.format {
            ImageFormat::Raw => Ok(file.metadata()?.len()),
            ImageFormat::Qcow2Luks => {
                let mut bytes = [0; 8];
                file.seek(SeekFrom::Start(QCOW2_SIZE_AT))?;
                file.read_exact(&mut bytes)?;
                Ok(u64::from_be_bytes(bytes))
            }
        }
    }

    /// Begins to make a qcow2, with options of the format.
    fn create_qcow2(&self) -> Command {
        let mut command = Command::new("qemu-img");
        command.args(["create", "-q", "-f", "qcow2"]);
        if self.format == ImageFormat::Qcow2Luks {
            // A cheaper key derivation, which is not measured.
            let key =
                format!("encrypt.key-secret=passphrase,encrypt.iter-time=100,encrypt.{}", qemu_img::KEY_HASH);
            command.args(["--object", &self.secret(), "-o", &format!("encrypt.format=luks,{key}")]);
        }
        command
    }

    /// The arguments for one of a disk's images and its file, above the one before.
    fn layer_arguments(&self, number: usize, image: &Path, is_top: bool) -> [String; 4] {
        let image = option_value(image);
        let access = if is_top { "" } else { ",read-only=on" };
        let file = format!(
            "driver=file,node-name=file{number},filename={image},cache.direct=on,aio=io_uring,discard=unmap{access}"
        );
        let mut layer = format!("node-name=layer{number},file=file{number}{access}");
        layer += match (number, self.format) {
            (0, ImageFormat::Raw) => ",driver=raw",
            (_, ImageFormat::Raw) => ",driver=qcow2,cache.direct=on",
            (_, ImageFormat::Qcow2Luks) => {
                ",driver=qcow2,cache.direct=on,encrypt.format=luks,encrypt.key-secret=passphrase"
            }
        };
        if let Some(below) = number.checked_sub(1) {
            layer += &format!(",backing=layer{below}");
        }
        ["--blockdev".to_owned(), file, "--blockdev".to_owned(), layer]
    }
}

impl Product for StorageDaemon {
    fn name(&self) -> &str {
        &self.name
    }

    fn create(&self, place: &Path, bytes: u64) -> Result<(), StudyError> {
        let mut command = match self.format {
            ImageFormat::Raw => {
                let mut command = Command::new("qemu-img");
                command.args(["create", "-q", "-f", "raw"]);
                command
            }
            ImageFormat::Qcow2Luks => self.create_qcow2(),
        };
        command.arg(place).arg(bytes.to_string());
        Ok(qemu_img::create(&mut command)?)
    }

    fn serve(&self, place: &Path, socket: &Path, queues: u16) -> Command {
        let mut command = Command::new("qemu-storage-daemon");
        if self.format == ImageFormat::Qcow2Luks {
            command.args(["--object", &self.secret()]);
        }
        let layers = Self::layers(place);
        let top = layers.len() - 1;
        for (number, image) in layers.iter().enumerate() {
            command.args(self.layer_arguments(number, image, number == top));
        }
        let socket = option_value(socket);
        let export = format!(
            "vhost-user-blk,id=export,node-name=layer{top},writable=on,num-queues={queues},addr.type=unix,addr.path={socket}"
        );
        command.args(["--export", &export]);
        command
    }

    /// A qcow2's tables are in the process's memory until a flush.
    fn outlives_kill(&self) -> bool {
        self.format == ImageFormat::Raw
    }

    fn log(&self, _: &Path) -> Result<Option<LogFacts>, StudyError> {
        Ok(None)
    }

    /// The overlay, without looking at what is below: the server is told of that.
    fn snapshot(&self, place: &Path, _: &str) -> Result<(), StudyError> {
        let failed = |error| StudyError::File { action: "read", path: place.to_owned(), error };
        let bytes = self.disk_bytes(place).map_err(failed)?;
        let layers = Self::layers(place);
        let below_format = match (layers.len(), self.format) {
            (1, ImageFormat::Raw) => "raw",
            _ => "qcow2",
        };
        let mut command = self.create_qcow2();
        command.args(["-u", "-F", below_format, "-b"]).args(layers.last());
        command.arg(Self::overlay(place, layers.len())).arg(bytes.to_string());
        Ok(qemu_img::create(&mut command)?)
    }

    fn snapshots_while_served(&self) -> bool {
        false
    }

    fn delete_snapshot(&self, place: &Path, _: &str) -> Result<(), StudyError> {
        let overlays = Self::layers(place).split_off(1);
        overlays.last().map_or(Ok(()), |overlay| remove(overlay))
    }

    fn delete(&self, place: &Path) -> Result<(), StudyError> {
        Self::layers(place).iter().try_for_each(|layer| remove(layer))
    }
}

fn remove(path: &Path) -> Result<(), StudyError> {
    let failed = |error| StudyError::File { action: "delete", path: path.to_owned(), error };
    fs::remove_file(path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::line_of;

    #[test]
    fn an_image_is_served_with_its_overlays_below() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("disk");
        let (name, passphrase_file) = (String::new(), PathBuf::new());
        let product = StorageDaemon { name, format: ImageFormat::Raw, passphrase_file };
        for path in [&place, &StorageDaemon::overlay(&place, 1)] {
            File::create(path).unwrap();
        }
        let line = line_of(&product.serve(&place, Path::new("/s"), 1));
        assert!(line.contains("node-name=layer0,file=file0,read-only=on,driver=raw"), "{line}");
        assert!(
            line.contains("node-name=layer1,file=file1,driver=qcow2,cache.direct=on,backing=layer0"),
            "{line}"
        );
        assert!(line.contains("node-name=layer1,writable=on"), "{line}");
        product.delete_snapshot(&place, "").unwrap();
        assert_eq!(StorageDaemon::layers(&place), [place]);
    }
}
