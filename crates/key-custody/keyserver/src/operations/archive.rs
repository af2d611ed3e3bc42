//! Archive and Recover (KMIP 1.4, 4.22 and 4.23).
//!
//! There is no separate storage for archived objects: they stay sealed in the same store, and are
//! not released until they are recovered.

use strongroom_kmip::message::{UniqueIdentifierRequest, UniqueIdentifierResponse};

use super::{Context, answer_for};
use crate::failure::Failure;

/// Puts an object into the archive.
pub fn archive(
    context: &mut Context<'_, '_>,
    request: &UniqueIdentifierRequest,
) -> Result<UniqueIdentifierResponse, Failure> {
    let mut object = context.living_object(request.unique_identifier.as_ref())?;
    object.life.archive(context.work.now())?;
    let answer = answer_for(object.id);
    context.work.replace(object)?;
    Ok(answer)
}

/// Takes an object out of the archive.
pub fn recover(
    context: &mut Context<'_, '_>,
    request: &UniqueIdentifierRequest,
) -> Result<UniqueIdentifierResponse, Failure> {
    let mut object = context.living_object(request.unique_identifier.as_ref())?;
    object.life.recover(context.work.now()).map_err(|error| {
        Failure::new(strongroom_kmip::protocol::ResultReason::IllegalOperation, error.to_string())
    })?;
    let answer = answer_for(object.id);
    context.work.replace(object)?;
    Ok(answer)
}
