//! Check (KMIP 1.4, 4.10).

use strongroom_kmip::message::{CheckRequest, CheckResponse};
use strongroom_kmip::protocol::{AttributeName, AttributeValue};
use strongroom_kmip::ttlv::Interval;

use super::Context;
use crate::failure::Failure;
use crate::objects::view::LEASE_SECONDS;

/// Checks whether an object may be used as requested; returns the allowed values in place of those
/// that are not.
pub fn check(context: &mut Context<'_, '_>, request: &CheckRequest) -> Result<CheckResponse, Failure> {
    let object = context.living_object(request.unique_identifier.as_ref())?;
    let left = object.usage.map(|usage| usage.left);
    let usage_limits_count = match (request.usage_limits_count, left) {
        (Some(asked), Some(left)) if asked > left => Some(left),
        _ => None,
    };
    let mask = match object.attributes.get(&AttributeName::CryptographicUsageMask) {
        Some(AttributeValue::CryptographicUsageMask(mask)) => *mask,
        _ => Default::default(),
    };
    let cryptographic_usage_mask =
        request.cryptographic_usage_mask.filter(|asked| !mask.contains(*asked)).map(|_| mask);
    let lease_time =
        request.lease_time.filter(|asked| asked.0 > LEASE_SECONDS).map(|_| Interval(LEASE_SECONDS));
    Ok(CheckResponse {
        unique_identifier: object.id.to_string(),
        usage_limits_count,
        cryptographic_usage_mask,
        lease_time,
    })
}
