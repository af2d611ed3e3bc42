//! Get Usage Allocation (KMIP 1.4, 4.18).

use strongroom_kmip::message::{GetUsageAllocationRequest, UniqueIdentifierResponse};

use super::{Context, answer_for};
use crate::failure::Failure;

/// Allocates a part of a key's remaining usage to a client.
pub fn get_usage_allocation(
    context: &mut Context<'_, '_>,
    request: &GetUsageAllocationRequest,
) -> Result<UniqueIdentifierResponse, Failure> {
    let mut object = context.online_object(request.unique_identifier.as_ref())?;
    let now = context.work.now();
    if !object.life.may_protect(now) {
        return Err(Failure::denied("the key may not protect now; see its state and dates"));
    }
    let Some(usage) = &mut object.usage else {
        return Err(Failure::denied("the key has no usage limits that anything could be allocated from"));
    };
    if !usage.allocate(request.usage_limits_count) {
        return Err(Failure::denied("the usage limits leave less than was asked for"));
    }
    object.touch(now);
    let answer = answer_for(object.id);
    context.work.replace(object)?;
    Ok(answer)
}
