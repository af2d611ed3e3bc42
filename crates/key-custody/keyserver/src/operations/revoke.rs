//! Revoke (KMIP 1.4, 4.20).

use strongroom_kmip::message::{RevokeRequest, UniqueIdentifierResponse};
use strongroom_kmip::protocol::RevocationReasonCode;

use super::{Context, answer_for, check_has_state, check_online};
use crate::failure::Failure;
use crate::objects::object::Revocation;

/// Ends the use of an object: as compromised or deactivated, depending on the reason. A destroyed
/// object can still be marked compromised.
pub fn revoke(
    context: &mut Context<'_, '_>,
    request: &RevokeRequest,
) -> Result<UniqueIdentifierResponse, Failure> {
    let mut object = context.object(request.unique_identifier.as_ref())?;
    check_has_state(&object)?;
    check_online(&object)?;
    let now = context.work.now();
    let reason = &request.revocation_reason;
    match reason.code {
        RevocationReasonCode::KeyCompromise | RevocationReasonCode::CaCompromise => {
            object.life.compromise(request.compromise_occurrence_date.map(Into::into), now)?;
        }
        _ => object.life.deactivate(now)?,
    }
    object.revocation = Some(Revocation::new(reason.code, reason.message.clone()));
    let answer = answer_for(object.id);
    context.work.replace(object)?;
    Ok(answer)
}
