//! Activate (KMIP 1.4, 4.19).

use strongroom_kmip::message::{UniqueIdentifierRequest, UniqueIdentifierResponse};

use super::{Context, answer_for, check_has_state};
use crate::failure::Failure;

/// Makes a pre-active object active, now.
pub fn activate(
    context: &mut Context<'_, '_>,
    request: &UniqueIdentifierRequest,
) -> Result<UniqueIdentifierResponse, Failure> {
    let mut object = context.online_object(request.unique_identifier.as_ref())?;
    check_has_state(&object)?;
    object.life.activate(context.work.now())?;
    let answer = answer_for(object.id);
    context.work.replace(object)?;
    Ok(answer)
}
