//! Destroy (KMIP 1.4, 4.21).

use strongroom_kmip::message::{UniqueIdentifierRequest, UniqueIdentifierResponse};

use super::failure::Failure;
use super::{Context, answer_for};
use crate::access::Role;

/// Drops the material for good; the tombstone stays.
pub fn destroy(
    context: &mut Context<'_, '_>,
    request: &UniqueIdentifierRequest,
) -> Result<UniqueIdentifierResponse, Failure> {
    if context.settings.delayed_destruction && context.caller.role() != Role::Client {
        return Err(Failure::denied(
            "keys that volumes rest upon are destroyed after a delay and with a second person",
        ));
    }
    let mut object = context.online_object(request.unique_identifier.as_ref())?;
    object.destroy(context.work.now())?;
    let answer = answer_for(object.id);
    context.work.replace(object)?;
    Ok(answer)
}
