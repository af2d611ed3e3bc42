//! The TPM of a guest that comes from another host while it runs.
//!
//! QEMU sends the whole state of the TPM with the last part of the guest's memory, in the clear
//! for the two QEMUs and the relays between them, as the memory itself. swtpm here has to run
//! before, when another host has the volume with its key. So it starts without a state, in a
//! directory of this host and with a key of its own, which nothing but this process and swtpm has.
//!
//! ```text
//! another host has the volumes       swtpm starts empty; QEMU gives it the state; it is written
//!                                    in the run directory, under the new key
//! they are here, nothing is decided  the record can be opened
//! the guest goes on here             the record names key and state as successor > the state is
//!                                    stored in the VM's directory > the record has them > it runs
//! ```
//!
//! Until the last line, the VM's directory and the record are as the other host has left them: if
//! the attempt is given up, or anybody dies, its TPM is there.

use std::time::Duration;

use strongroom_crypto::mac::sha256;
use strongroom_hypervisor::{RunDirectory, Swtpm};
use strongroom_memory::secret::SecretBytes;

use super::record::{KEY_BYTES, TpmRecord};
use super::{Keeper, TpmError, TpmPlace, pipe_of};

/// Timeout from QEMU's end to swtpm's.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// A TPM that comes with its guest.
#[derive(Debug)]
pub struct ArrivingTpm {
    place: TpmPlace,
    swtpm: Swtpm,
    /// The key of swtpm's state, until the record has it.
    key: SecretBytes,
}

impl ArrivingTpm {
    /// Starts a swtpm without a state, for a QEMU that waits for its guest's memory.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(place: TpmPlace, run: &RunDirectory) -> Result<Self, TpmError> {
        let key = SecretBytes::random(KEY_BYTES)?;
        place.place(None).map_err(place.failed("make a place for"))?;
        let pipe = pipe_of(key.expose()).map_err(place.failed("hand over the key of"))?;
        let swtpm = place.starter.start_tpm(run, &pipe).map_err(TpmError::Swtpm)?;
        Ok(Self { place, swtpm, key })
    }

    /// Its swtpm.
    pub fn swtpm(&self) -> &Swtpm {
        &self.swtpm
    }

    /// The same, for its end if QEMU does not start.
    pub fn swtpm_mut(&mut self) -> &mut Swtpm {
        &mut self.swtpm
    }

    /// Checks that it has come, and that its record can be had. Changes nothing.
    ///
    /// # Errors
    /// What it lacks.
    pub fn check(&self) -> Result<(), TpmError> {
        if self.swtpm.wait(Duration::ZERO) || self.place.state()?.is_none() {
            return Err(TpmError::NotThere(self.place.spec.name.clone()));
        }
        let mut volume = self.place.open()?;
        TpmRecord::read(&mut volume)?;
        Ok(volume.close()?)
    }

    /// Puts its state and its key in the place of those that the other host has left.
    ///
    /// # Errors
    /// If that cannot be made durable. The VM has one of the two then.
    pub fn take_over(&self) -> Result<(), TpmError> {
        let place = &self.place;
        let Some(state) = place.state()? else {
            return Err(TpmError::NotThere(place.spec.name.clone()));
        };
        let digest = sha256(&state.content);
        let mut volume = place.open()?;
        let mut record = TpmRecord::read(&mut volume)?;
        record.name_successor(&mut volume, &self.key, &digest)?;
        place.starter.take_tpm_state().map_err(place.failed("take over"))?;
        place.store(&state.content).map_err(|errno| place.failed("store")(errno.into()))?;
        record.settle_successor(&mut volume, Some(&digest))?;
        Ok(volume.close()?)
    }

    /// Records its states from now on. If swtpm ends, `lost` is called with its last output.
    ///
    /// # Errors
    /// As [`Keeper::start`].
    pub fn keep(self, lost: impl FnOnce(String) + Send + 'static) -> std::io::Result<Keeper> {
        Keeper::start(self.place, self.swtpm, lost)
    }

    /// Waits for the end of swtpm, whose QEMU has ended. Nothing of it stays.
    pub fn end(mut self) {
        if !self.swtpm.wait(ENDS_WITHIN) {
            self.swtpm.kill();
        }
    }
}
