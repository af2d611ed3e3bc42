//! Wraps a key under another: AES key wrap (NIST SP 800-38F, RFC 3394 and 5649) in Get.

use aws_lc_rs::key_wrap::{AES_128, AES_256, AesKek, KeyWrap, KeyWrapPadded};
use strongroom_kmip::protocol::{
    AttributeName, AttributeValue, BlockCipherMode, CryptographicAlgorithm, CryptographicParameters,
    CryptographicUsageMask, EncodingOption, KeyBlock, KeyContent, KeyValue, KeyWrappingData,
    KeyWrappingSpecification, ResultReason, UsageLimitsUnit, WrappingMethod,
};
use zeroize::Zeroizing;

use super::{Context, check_online};
use crate::access::{OperationClass, Scope, scope};
use crate::failure::Failure;
use crate::objects::object::Object;

/// Wrapping adds one semiblock, and padding up to seven bytes before it.
const SEMIBLOCK_BYTES: usize = 8;

/// Wraps `block`, a plain key of `object`, as the client requests.
///
/// # Errors
///
/// If the specification is invalid, or the wrapping key is missing or may not be used.
pub fn wrap(
    context: &mut Context<'_, '_>,
    object: &Object,
    block: KeyBlock,
    specification: &KeyWrappingSpecification,
) -> Result<KeyBlock, Failure> {
    if specification.wrapping_method != WrappingMethod::Encrypt || specification.mac_signature_key.is_some() {
        return Err(Failure::not_offered(
            "keys are wrapped by encryption alone: a MAC or signature is not offered",
        ));
    }
    let Some(information) = &specification.encryption_key else {
        return Err(Failure::new(ResultReason::MissingData, "which key is to wrap?"));
    };
    let Some(KeyValue::Content(content)) = block.key_value else {
        return Err(Failure::new(ResultReason::IllegalOperation, "there is no plain key to wrap"));
    };
    let mut wrapping_key = wrapping_key(context, &information.unique_identifier)?;
    let mode = mode_of(information.cryptographic_parameters.as_ref(), &wrapping_key)?;

    let text = match specification.encoding_option {
        Some(EncodingOption::NoEncoding) => {
            if !specification.attribute_names.is_empty() {
                return Err(Failure::new(
                    ResultReason::EncodingOptionError,
                    "attributes are wrapped with a key only in the TTLV encoding",
                ));
            }
            let bytes = content.material.bytes().ok_or_else(|| {
                Failure::new(ResultReason::EncodingOptionError, "the key's material is no string of bytes")
            })?;
            Zeroizing::new(bytes.expose().to_vec())
        }
        None | Some(EncodingOption::TtlvEncoding) => {
            let attributes = object.attributes_at(context.version, context.work.now());
            let wanted = attributes
                .into_iter()
                .filter(|attribute| specification.attribute_names.contains(&attribute.name()));
            KeyContent { attributes: wanted.collect(), ..content }.to_ttlv(context.version)
        }
        Some(other) => {
            return Err(Failure::new(
                ResultReason::EncodingOptionError,
                format!("{other} is not an encoding option here"),
            ));
        }
    };
    let wrapped = encrypt(&wrapping_key, mode, &text)?;
    if use_allowance(&mut wrapping_key, text.len())? {
        wrapping_key.touch(context.work.now());
        context.work.replace(wrapping_key)?;
    }
    Ok(KeyBlock {
        key_value: Some(KeyValue::WrappedContent(wrapped.into())),
        key_wrapping_data: Some(KeyWrappingData {
            wrapping_method: WrappingMethod::Encrypt,
            encryption_key: Some(information.clone()),
            mac_signature_key: None,
            mac_signature: None,
            iv_counter_nonce: None,
            encoding_option: specification.encoding_option,
        }),
        ..block
    })
}

/// The key that wraps: the caller's own, or granted for use, and active.
fn wrapping_key(context: &mut Context<'_, '_>, named: &String) -> Result<Object, Failure> {
    // A client wraps with keys that it owns; a host needs a grant for using the key.
    let class = match scope(context.caller.role(), OperationClass::ReadKey) {
        Scope::Granted => OperationClass::UseKey,
        _ => OperationClass::ReadKey,
    };
    let key = context.object_for(Some(named), class)?;
    if key.is_destroyed() {
        return Err(Failure::not_found());
    }
    check_online(&key)?;
    check_may_be_used(&key, CryptographicUsageMask::WRAP_KEY)?;
    if !key.life.may_protect(context.work.now()) {
        return Err(Failure::denied("the wrapping key may not protect now; see its state and dates"));
    }
    Ok(key)
}

/// Refuses a use that the key's Cryptographic Usage Mask does not permit.
pub(super) fn check_may_be_used(key: &Object, purpose: CryptographicUsageMask) -> Result<(), Failure> {
    match key.attributes.get(&AttributeName::CryptographicUsageMask) {
        Some(AttributeValue::CryptographicUsageMask(mask)) if mask.contains(purpose) => Ok(()),
        _ => Err(Failure::denied("the key's Cryptographic Usage Mask does not allow that")),
    }
}

/// Counts a use of `length_bytes` against the key's usage limits. Returns whether it has any.
pub(super) fn use_allowance(key: &mut Object, length_bytes: usize) -> Result<bool, Failure> {
    let Some(usage) = &mut key.usage else { return Ok(false) };
    let count = match usage.unit() {
        UsageLimitsUnit::Byte => i64::try_from(length_bytes).unwrap_or(i64::MAX),
        _ => 1,
    };
    if usage.allocate(count) {
        Ok(true)
    } else {
        Err(Failure::denied("the key's usage limits leave less than that"))
    }
}

/// The parameters of the request or, failing that, of the key.
pub(super) fn parameters_of<'a>(
    asked: Option<&'a CryptographicParameters>,
    key: &'a Object,
) -> Option<&'a CryptographicParameters> {
    asked.or_else(|| match key.attributes.get(&AttributeName::CryptographicParameters) {
        Some(AttributeValue::CryptographicParameters(parameters)) => Some(parameters),
        _ => None,
    })
}

fn mode_of(asked: Option<&CryptographicParameters>, key: &Object) -> Result<BlockCipherMode, Failure> {
    let mode = parameters_of(asked, key).and_then(|parameters| parameters.block_cipher_mode);
    match mode {
        Some(mode @ (BlockCipherMode::NistKeyWrap | BlockCipherMode::AesKeyWrapPadding)) => Ok(mode),
        Some(other) => Err(Failure::new(
            ResultReason::CryptographicFailure,
            format!("keys are wrapped by NISTKeyWrap or AESKeyWrapPadding, not {other}"),
        )),
        None => {
            Err(Failure::new(ResultReason::MissingData, "neither the request nor the key says how to wrap"))
        }
    }
}

fn encrypt(key: &Object, mode: BlockCipherMode, text: &[u8]) -> Result<Vec<u8>, Failure> {
    let unusable = |what: &str| Failure::new(ResultReason::CryptographicFailure, what);
    let is_aes = key.attributes.get(&AttributeName::CryptographicAlgorithm)
        == Some(&AttributeValue::CryptographicAlgorithm(CryptographicAlgorithm::Aes));
    let Some(secret) = key.plain_key().filter(|_| is_aes) else {
        return Err(unusable("the wrapping key is no plain key of AES"));
    };
    let cipher = match secret.len() {
        16 => &AES_128,
        32 => &AES_256,
        _ => return Err(unusable("the wrapping key has neither 128 nor 256 bits")),
    };
    let kek =
        AesKek::new(cipher, secret.expose()).map_err(|_| unusable("the wrapping key cannot be used"))?;
    let mut wrapped = vec![0; text.len().next_multiple_of(SEMIBLOCK_BYTES) + SEMIBLOCK_BYTES];
    let length_bytes = match mode {
        BlockCipherMode::NistKeyWrap => kek.wrap(text, &mut wrapped).map(|wrapped| wrapped.len()),
        _ => kek.wrap_with_padding(text, &mut wrapped).map(|wrapped| wrapped.len()),
    }
    .map_err(|_| {
        unusable(
            "a key of that length cannot be wrapped so; NISTKeyWrap takes multiples of 8 bytes from 16 on",
        )
    })?;
    wrapped.truncate(length_bytes);
    Ok(wrapped)
}
