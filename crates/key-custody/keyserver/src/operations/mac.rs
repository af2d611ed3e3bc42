//! MAC and MAC Verify (KMIP 1.4, 4.33 and 4.34), if enabled: HMAC.

use aws_lc_rs::hmac;
use strongroom_kmip::message::{MacRequest, MacResponse, MacVerifyRequest, MacVerifyResponse};
use strongroom_kmip::protocol::{
    AttributeName, AttributeValue, CryptographicAlgorithm, CryptographicParameters, CryptographicUsageMask,
    ResultReason, ValidityIndicator,
};

use super::Context;
use super::encrypt::{check_in_one_part, missing_data};
use super::wrap::{check_may_be_used, parameters_of, use_allowance};
use crate::failure::Failure;
use crate::objects::object::Object;

/// Computes the MAC of a client's data.
pub fn mac(context: &mut Context<'_, '_>, request: &MacRequest) -> Result<MacResponse, Failure> {
    check_in_one_part(&request.correlation_value, request.init_indicator, request.final_indicator)?;
    let data = request.data.as_ref().ok_or_else(missing_data)?;
    let mut key = context.online_object(request.unique_identifier.as_ref())?;
    check_may_be_used(&key, CryptographicUsageMask::MAC_GENERATE)?;
    if !key.life.may_protect(context.work.now()) {
        return Err(Failure::denied("the key may not protect now; see its state and dates"));
    }
    let tag = hmac::sign(&hmac_key(&key, request.cryptographic_parameters.as_ref())?, data.expose());
    let unique_identifier = key.id.to_string();
    if use_allowance(&mut key, data.len())? {
        key.touch(context.work.now());
        context.work.replace(key)?;
    }
    Ok(MacResponse { unique_identifier, mac_data: Some(tag.as_ref().into()), correlation_value: None })
}

/// Verifies the MAC of a client's data.
pub fn mac_verify(
    context: &mut Context<'_, '_>,
    request: &MacVerifyRequest,
) -> Result<MacVerifyResponse, Failure> {
    check_in_one_part(&request.correlation_value, request.init_indicator, request.final_indicator)?;
    let data = request.data.as_ref().ok_or_else(missing_data)?;
    let tag = request.mac_data.as_ref().ok_or_else(missing_data)?;
    let key = context.online_object(request.unique_identifier.as_ref())?;
    check_may_be_used(&key, CryptographicUsageMask::MAC_VERIFY)?;
    if !key.life.may_process(context.work.now()) {
        return Err(Failure::denied("the key may not process now; see its state and dates"));
    }
    let hmac_key = hmac_key(&key, request.cryptographic_parameters.as_ref())?;
    let valid = hmac::verify(&hmac_key, data.expose(), tag.expose()).is_ok();
    Ok(MacVerifyResponse {
        unique_identifier: key.id.to_string(),
        validity_indicator: Some(if valid { ValidityIndicator::Valid } else { ValidityIndicator::Invalid }),
        correlation_value: None,
    })
}

fn hmac_key(key: &Object, asked: Option<&CryptographicParameters>) -> Result<hmac::Key, Failure> {
    let own = match key.attributes.get(&AttributeName::CryptographicAlgorithm) {
        Some(AttributeValue::CryptographicAlgorithm(algorithm)) => Some(*algorithm),
        _ => None,
    };
    let algorithm =
        parameters_of(asked, key).and_then(|parameters| parameters.cryptographic_algorithm).or(own);
    let hmac_algorithm = match algorithm {
        Some(CryptographicAlgorithm::HmacSha1) => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
        Some(CryptographicAlgorithm::HmacSha224) => hmac::HMAC_SHA224,
        Some(CryptographicAlgorithm::HmacSha256) => hmac::HMAC_SHA256,
        Some(CryptographicAlgorithm::HmacSha384) => hmac::HMAC_SHA384,
        Some(CryptographicAlgorithm::HmacSha512) => hmac::HMAC_SHA512,
        _ => return Err(Failure::not_offered("MACs are HMACs with SHA-1 or SHA-2 here")),
    };
    let secret = key.plain_key().ok_or_else(|| {
        Failure::new(ResultReason::CryptographicFailure, "only plain symmetric keys make MACs")
    })?;
    Ok(hmac::Key::new(hmac_algorithm, secret.expose()))
}
