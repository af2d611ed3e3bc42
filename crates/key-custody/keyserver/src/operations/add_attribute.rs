//! Add Attribute (KMIP 1.4, 4.14).

use strongroom_kmip::message::{AddAttributeRequest, AttributeResponse};
use strongroom_kmip::protocol::{Attribute, AttributeValue};

use super::modify_attribute::{attribute_at, checked_rule, settable_date};
use super::new_object::check_value;
use super::{Context, check_has_state};
use crate::failure::Failure;
use crate::objects::attributes::{AttributeError, Keeper};
use crate::objects::object::Usage;

/// Adds a value of an attribute that the object lacks, or of which it may have several.
pub fn add_attribute(
    context: &mut Context<'_, '_>,
    request: &AddAttributeRequest,
) -> Result<AttributeResponse, Failure> {
    let attribute = &request.attribute;
    if attribute.index.is_some_and(|index| index.0 != 0) {
        return Err(Failure::invalid("the server chooses the index of a new attribute"));
    }
    let rule = checked_rule(context, &attribute.value)?;
    check_value(&attribute.value)?;
    let mut object = context.online_object(request.unique_identifier.as_ref())?;
    let now = context.work.now();
    let name = attribute.name();
    let single = || Failure::from(AttributeError::Single { name: name.clone() });
    let added = match (&attribute.value, rule.keeper) {
        (_, Keeper::Server) | (AttributeValue::Fresh(_) | AttributeValue::OriginalCreationDate(_), _) => {
            return Err(Failure::denied(format!("{name} is set with the object, or by the server")));
        }
        (value, Keeper::LifeCycle) => {
            check_has_state(&object)?;
            let (date, at) = settable_date(value)?;
            if object.life.date(date).is_some() {
                return Err(single());
            }
            object.life.set_date(date, at, now)?;
            Attribute::from(value.clone())
        }
        (AttributeValue::UsageLimits(limits), _) => {
            if object.usage.is_some() {
                return Err(single());
            }
            object.usage = Some(Usage::new(limits.total, limits.unit));
            attribute_at(&object, &name, now)?
        }
        (value, _) => object.attributes.add(value.clone(), rule.many)?,
    };
    object.note_protection();
    object.touch(now);
    let answer = AttributeResponse { unique_identifier: object.id.to_string(), attribute: added };
    context.work.replace(object)?;
    Ok(answer)
}
