//! Obtain Lease (KMIP 1.4, 4.17).

use strongroom_kmip::message::{ObtainLeaseResponse, UniqueIdentifierRequest};
use strongroom_kmip::ttlv::Interval;

use super::{Context, check_has_state};
use crate::failure::Failure;
use crate::objects::lifecycle::State;
use crate::objects::view::LEASE_SECONDS;

/// Extends a client's use of a key that it holds, or ends it.
pub fn obtain_lease(
    context: &mut Context<'_, '_>,
    request: &UniqueIdentifierRequest,
) -> Result<ObtainLeaseResponse, Failure> {
    let object = context.online_object(request.unique_identifier.as_ref())?;
    check_has_state(&object)?;
    let now = context.work.now();
    if object.life.state_at(now) == State::Compromised {
        return Err(Failure::denied("the key is compromised; no lease is given on it any more"));
    }
    Ok(ObtainLeaseResponse {
        unique_identifier: object.id.to_string(),
        lease_time: Interval(LEASE_SECONDS),
        last_change_date: object.life.last_change_at(now).into(),
    })
}
