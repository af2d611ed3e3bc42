//! Destroy (KMIP 1.4, 4.21).

use strongroom_kmip::message::{UniqueIdentifierRequest, UniqueIdentifierResponse};
use strongroom_kmip::protocol::AttributeValue;

use super::asking::Ask;
use super::{Context, answer_for};
use crate::access::Role;
use crate::failure::Failure;
use crate::objects::destruction::named;
use crate::objects::object::Object;

/// The Object Group of the keys that Strongroom makes for volumes.
pub const VOLUME_KEY_GROUP: &str = "strongroom";

/// Destroys the material permanently; the tombstone stays.
///
/// A client destroys its own objects at once, unless a volume depends on them. Dependents are
/// checked for every key. If they are unknown, because a datastore is missing, a key that
/// Strongroom made is kept, while another client's key is destroyed.
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
    let is_of_volumes = is_of_volumes(&object);
    // A wrong state is refused before dependents are searched.
    object.destroy(context.work.now())?;
    check_unneeded(context, &object, is_of_volumes)?;
    let answer = answer_for(object.id);
    context.work.replace(object)?;
    Ok(answer)
}

fn is_of_volumes(object: &Object) -> bool {
    object.attributes.has(&AttributeValue::ObjectGroup(VOLUME_KEY_GROUP.to_owned()))
}

fn check_unneeded(
    context: &mut Context<'_, '_>,
    object: &Object,
    is_of_volumes: bool,
) -> Result<(), Failure> {
    match context.answers.dependents.get(&object.id) {
        None => Err(context.ask(Ask::Dependents(object.id))),
        Some(Ok(dependents)) if dependents.is_empty() => Ok(()),
        Some(Ok(dependents)) => Err(Failure::denied(format!(
            "the key is still needed by {}: {}",
            dependents.len(),
            named(dependents)
        ))),
        Some(Err(unknown)) if is_of_volumes => {
            Err(Failure::denied(format!("it cannot be said whether anything needs the key: {unknown}")))
        }
        Some(Err(_)) => Ok(()),
    }
}
