//! Growing a volume.

use std::os::fd::AsFd;

use rustix::fs::fsync;
use strongroom_types::VolumeSize;

use super::create::size_layer;
use super::directory::system;
use super::error::DatastoreError;
use super::open::{OpenVolume, Protection};

impl OpenVolume {
    /// Grows the volume; what is new reads as zeroes. The layer's file grows first, and durably: a power cut before the
    /// descriptor is replaced leaves a file that is longer than needed, which harms nothing.
    pub fn grow(&mut self, size: VolumeSize, protection: Protection<'_>) -> Result<(), DatastoreError> {
        let path = self.directory.path.clone();
        let from = self.descriptor.size_bytes;
        if size < from {
            return Err(DatastoreError::Shrink { path, from, to: size });
        }
        if size == from {
            return Ok(());
        }
        let mut grown = self.descriptor.clone();
        grown.size_bytes = size;
        grown.generation += 1;
        let encoded = grown.encode(&path, protection.kek())?;
        let layer = &self.disk.shared.layer.0;
        size_layer(layer, from.block_aligned_bytes(), &grown, &path)?;
        fsync(layer.as_fd()).map_err(system("sync a layer of", &path))?;
        self.directory.write_descriptor(&encoded)?;
        self.descriptor = grown;
        self.disk.set_size(size.block_aligned_bytes());
        Ok(())
    }
}
