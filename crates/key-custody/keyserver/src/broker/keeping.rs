//! Brokered keys as objects: their creation, and updates from their provider.

use strongroom_keys::ProviderKey;
use strongroom_kmip::protocol::{
    AttributeValue, CryptographicAlgorithm, CryptographicUsageMask, KeyBlock, KeyFormatType, Name, NameType,
    ObjectType, RevocationReasonCode,
};

use super::upstream::UpstreamState;
use crate::access::ClientId;
use crate::objects::attributes::AttributeSet;
use crate::objects::clock::UnixSeconds;
use crate::objects::id::ObjectId;
use crate::objects::keeping::{KeepingError, Objects};
use crate::objects::lifecycle::{LifeCycle, LifeCycleError, RequestedDates, State};
use crate::objects::object::{Content, Material, Object, Revocation};

/// Length in bits of every brokered key.
const KEY_BITS: i32 = 256;
/// The Object Group of the keys of this program's volumes.
const KEY_GROUP: &str = "strongroom";
/// How often a transaction is retried after a conflict.
const ATTEMPTS: usize = 8;

/// Why a provider's key was not adopted.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// A store error.
    #[error(transparent)]
    Keeping(#[from] KeepingError),
    /// Contradictory dates, which a new object never has.
    #[error(transparent)]
    LifeCycle(#[from] LifeCycleError),
    /// Every attempt conflicted with a concurrent change.
    #[error("others keep changing the same keys; try again")]
    Contended,
}

/// Adopts a provider's key for `owner`, or finds the object of a key adopted before. Returns its id
/// and state. Blocks for a write to the device.
///
/// # Errors
/// [`BrokerError`].
pub fn take_in(
    objects: &Objects,
    owner: ClientId,
    key: &ProviderKey,
    state: UpstreamState,
) -> Result<(ObjectId, State), BrokerError> {
    for _ in 0..ATTEMPTS {
        let mut work = objects.begin()?;
        if let Some(id) = work.named(owner, &name_of(key))? {
            let object = work.load(id)?;
            return Ok((id, object.life.state_at(work.now())));
        }
        let mut object = brokered(owner, key, work.now())?;
        follow(&mut object, state, work.now());
        let taken_in = (object.id, object.life.state_at(work.now()));
        work.add(object)?;
        if objects.commit_blocking(work.into_transaction()?)? {
            return Ok(taken_in);
        }
    }
    Err(BrokerError::Contended)
}

/// All brokered keys that are not destroyed, oldest first.
///
/// # Errors
/// [`KeepingError`].
pub fn list(objects: &Objects) -> Result<Vec<(ObjectId, ProviderKey, State)>, KeepingError> {
    let work = objects.begin()?;
    let now = work.now();
    let brokered = |object: Object| Some((object.id, object.upstream.clone()?, object.life.state_at(now)));
    Ok(work.live(None)?.into_iter().filter_map(brokered).collect())
}

/// A new object for a provider's key; active.
///
/// # Errors
/// [`LifeCycleError`], which cannot happen for such an object.
fn brokered(owner: ClientId, key: &ProviderKey, now: UnixSeconds) -> Result<Object, LifeCycleError> {
    let mut attributes = AttributeSet::default();
    for value in [
        AttributeValue::Name(Name { value: name_of(key), kind: NameType::UninterpretedTextString }),
        AttributeValue::CryptographicAlgorithm(CryptographicAlgorithm::Aes),
        AttributeValue::CryptographicLength(KEY_BITS),
        AttributeValue::CryptographicUsageMask(
            CryptographicUsageMask::ENCRYPT | CryptographicUsageMask::DECRYPT,
        ),
        AttributeValue::Sensitive(false),
        AttributeValue::Extractable(true),
        AttributeValue::ObjectGroup(KEY_GROUP.to_owned()),
    ] {
        attributes.set(value);
    }
    let block = KeyBlock {
        key_format_type: KeyFormatType::Raw,
        key_compression_type: None,
        key_value: None,
        cryptographic_algorithm: Some(CryptographicAlgorithm::Aes),
        cryptographic_length: Some(KEY_BITS),
        key_wrapping_data: None,
    };
    Ok(Object {
        id: ObjectId::random(),
        owner,
        object_type: ObjectType::SymmetricKey,
        life: LifeCycle::begin(RequestedDates { activation: Some(now), ..RequestedDates::default() }, now)?,
        attributes,
        content: Content::Key { block, material: Material::Absent },
        digest: None,
        // Others at the provider may have seen the key.
        fresh: false,
        revocation: None,
        usage: None,
        made_here: false,
        always_sensitive: false,
        never_extractable: false,
        upstream: Some(key.clone()),
    })
}

/// Advances an object to its provider's state; returns whether that changed it. It never moves
/// back.
pub(crate) fn follow(object: &mut Object, state: UpstreamState, now: UnixSeconds) -> bool {
    let (moved, code) = match state {
        UpstreamState::Active => return false,
        UpstreamState::Deactivated => {
            (object.life.deactivate(now), RevocationReasonCode::CessationOfOperation)
        }
        UpstreamState::Compromised => {
            (object.life.compromise(None, now), RevocationReasonCode::KeyCompromise)
        }
    };
    // The object is already in that state or beyond.
    if moved.is_err() {
        return false;
    }
    object.revocation = Some(Revocation::new(code, Some("so its provider says".to_owned())));
    true
}

/// The name by which it is found again.
fn name_of(key: &ProviderKey) -> String {
    match &key.wrapped {
        // One transit key wraps many.
        Some(wrapped) => {
            let digest = strongroom_crypto::mac::sha256(wrapped.as_bytes());
            format!("{}:{}:{}", key.provider, key.key, strongroom_types::hex::encode(&digest[..16]))
        }
        None => format!("{}:{}", key.provider, key.key),
    }
}
