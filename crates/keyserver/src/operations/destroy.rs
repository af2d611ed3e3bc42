//! Destroy (KMIP 1.4, 4.21).

use strongroom_kmip::message::{UniqueIdentifierRequest, UniqueIdentifierResponse};

use super::failure::Failure;
use super::{Context, answer_for};

/// Drops the material for good; the tombstone stays.
pub fn destroy(
    context: &mut Context<'_, '_>,
    request: &UniqueIdentifierRequest,
) -> Result<UniqueIdentifierResponse, Failure> {
    let mut object = context.online_object(request.unique_identifier.as_ref())?;
    object.destroy(context.work.now())?;
    let answer = answer_for(object.id);
    context.work.replace(object)?;
    Ok(answer)
}
