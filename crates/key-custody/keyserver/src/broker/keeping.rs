//! Brokered keys among the objects: how they begin, and how they follow their provider.

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

/// Bits of every key that a provider keeps for us.
const KEY_BITS: i32 = 256;
/// The Object Group of the keys that this program's volumes take.
const KEY_GROUP: &str = "strongroom";
/// How often it is tried again because another one came between.
const ATTEMPTS: usize = 8;

/// Why a provider's key is not taken in.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// The store.
    #[error(transparent)]
    Keeping(#[from] KeepingError),
    /// Dates, which a new object has none of that contradict each other.
    #[error(transparent)]
    LifeCycle(#[from] LifeCycleError),
    /// Others came between every time.
    #[error("others keep changing the same keys; try again")]
    Contended,
}

/// Takes a provider's key in, for `owner`; one that is taken in already is that object. Answers
/// which, and its state. Blocks for a write to the device.
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
/// [`LifeCycleError`], which no such object has.
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
        // Whoever took part in its making at the provider may have seen it.
        fresh: false,
        revocation: None,
        usage: None,
        made_here: false,
        always_sensitive: false,
        never_extractable: false,
        upstream: Some(key.clone()),
    })
}

/// Brings an object as far along as its provider says; whether that changed it. It never goes back.
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
    // It is as far along already.
    if moved.is_err() {
        return false;
    }
    object.revocation = Some(Revocation::new(code, Some("so its provider says".to_owned())));
    true
}

/// By which it is found again.
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
