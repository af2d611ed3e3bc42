//! The generations of a VM that are prepared on another host while it runs.

use strongroom_store::{Is, Snapshot, Transaction};

use super::super::refusal::Refusal;
use super::super::{VmGeneration, VmId};
use super::RedeemError;

pub(crate) const PREPARED: &[u8] = b"grant/prepared/";
const VALUE_BYTES: usize = 16;

/// What the ledger knows of a VM's prepared generations. Both numbers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::grant) struct Prepared {
    /// The last one.
    last: u64,
    /// It and those before it are void, unless they were committed. 0 if there is none.
    void_up_to: u64,
}

impl Prepared {
    pub(in crate::grant) fn key(vm: VmId) -> Vec<u8> {
        [PREPARED, vm.as_bytes()].concat()
    }

    /// What is recorded, and the condition that it is unchanged.
    pub(in crate::grant) fn read(snapshot: &dyn Snapshot, vm: VmId) -> Result<(Self, Is), RedeemError> {
        let key = Self::key(vm);
        match snapshot.get(&key)? {
            None => Ok((Self::default(), Is::Absent)),
            Some(entry) => Ok((Self::of(&key, &entry.value)?, Is::ModifiedAt(entry.mod_revision))),
        }
    }

    fn of(key: &[u8], value: &[u8]) -> Result<Self, RedeemError> {
        let damaged = || RedeemError::Damaged { key: key.escape_ascii().to_string() };
        let value: &[u8; VALUE_BYTES] = value.try_into().map_err(|_| damaged())?;
        let value = u128::from_be_bytes(*value);
        Ok(Self { last: (value >> 64) as u64, void_up_to: value as u64 })
    }

    fn to_bytes(self) -> [u8; VALUE_BYTES] {
        (u128::from(self.last) << 64 | u128::from(self.void_up_to)).to_be_bytes()
    }

    /// Checks a generation above the highest one.
    ///
    /// # Errors
    /// [`Refusal::NotPrepared`] if it is void, or if another one is prepared since.
    pub(in crate::grant) fn check(self, generation: VmGeneration, is_prepared: bool) -> Result<(), Refusal> {
        let is_void = self.void_up_to != 0 && generation.0 <= self.void_up_to;
        let is_replaced = is_prepared && generation.0 < self.last;
        if is_void || is_replaced {
            return Err(Refusal::NotPrepared { granted: generation });
        }
        Ok(())
    }

    /// Whether a holding of this generation, which is above the highest one, is valid.
    pub(in crate::grant) fn is_valid(self, generation: u64) -> bool {
        (self.void_up_to == 0 || generation > self.void_up_to) && generation >= self.last
    }

    pub(in crate::grant) fn and_prepared(self, generation: VmGeneration) -> Self {
        Self { last: self.last.max(generation.0), ..self }
    }

    pub(in crate::grant) fn without(self, generation: VmGeneration) -> Self {
        Self { void_up_to: self.void_up_to.max(generation.0), ..self }
    }

    pub(in crate::grant) fn put_into(self, transaction: Transaction, vm: VmId) -> Transaction {
        transaction.put(Self::key(vm), self.to_bytes())
    }
}

/// What two servers know together: neither number goes back.
///
/// # Errors
/// [`RedeemError::Damaged`].
pub(crate) fn later_prepared(key: &[u8], one: &[u8], other: &[u8]) -> Result<Vec<u8>, RedeemError> {
    let (one, other) = (Prepared::of(key, one)?, Prepared::of(key, other)?);
    let (last, void_up_to) = (one.last.max(other.last), one.void_up_to.max(other.void_up_to));
    Ok(Prepared { last, void_up_to }.to_bytes().to_vec())
}
