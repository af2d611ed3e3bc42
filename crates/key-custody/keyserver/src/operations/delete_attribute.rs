//! Delete Attribute (KMIP 1.4, 4.16).

use strongroom_kmip::message::{AttributeResponse, DeleteAttributeRequest};
use strongroom_kmip::protocol::{AttributeName, ResultReason};

use super::Context;
use super::modify_attribute::{attribute_at, check_unused};
use crate::failure::Failure;
use crate::objects::attributes::{Keeper, rule};

/// Removes one value of an attribute, and returns it.
pub fn delete_attribute(
    context: &mut Context<'_, '_>,
    request: &DeleteAttributeRequest,
) -> Result<AttributeResponse, Failure> {
    let name = &request.attribute_name;
    let rule =
        rule(name).ok_or_else(|| Failure::invalid(format!("{name} is not an attribute of objects here")))?;
    let mut object = context.online_object(request.unique_identifier.as_ref())?;
    let now = context.work.now();
    let deleted = match rule.keeper {
        // These control the release of the secret; they can be changed, but never deleted.
        _ if matches!(name, AttributeName::Sensitive | AttributeName::Extractable) => {
            return Err(Failure::denied(format!("{name} is not deleted")));
        }
        Keeper::Server | Keeper::ClientOnce | Keeper::LifeCycle => {
            return Err(Failure::denied(format!("{name} is not deleted by clients")));
        }
        Keeper::UsageLimits => {
            let missing = || Failure::new(ResultReason::ItemNotFound, "the object has no Usage Limits");
            check_unused(&object.usage.ok_or_else(missing)?)?;
            let deleted = attribute_at(&object, name, now)?;
            object.usage = None;
            deleted
        }
        Keeper::Client => object.attributes.remove(name, request.attribute_index.unwrap_or_default().0)?,
    };
    object.touch(now);
    let answer = AttributeResponse { unique_identifier: object.id.to_string(), attribute: deleted };
    context.work.replace(object)?;
    Ok(answer)
}
