//! Modify Attribute (KMIP 1.4, 4.15).

use strongroom_kmip::message::{AttributeResponse, ModifyAttributeRequest};
use strongroom_kmip::protocol::{Attribute, AttributeName, AttributeValue, ProtocolVersion, ResultReason};

use super::new_object::check_value;
use super::{Context, check_has_state};
use crate::failure::Failure;
use crate::objects::attributes::{AttributeRule, Keeper, rule};
use crate::objects::clock::UnixSeconds;
use crate::objects::lifecycle::SettableDate;
use crate::objects::object::{Object, Usage};

/// Replaces one of the object's values.
pub fn modify_attribute(
    context: &mut Context<'_, '_>,
    request: &ModifyAttributeRequest,
) -> Result<AttributeResponse, Failure> {
    let attribute = &request.attribute;
    let rule = checked_rule(context, &attribute.value)?;
    check_value(&attribute.value)?;
    let mut object = context.online_object(request.unique_identifier.as_ref())?;
    let now = context.work.now();
    let name = attribute.name();
    let missing = || Failure::new(ResultReason::ItemNotFound, format!("the object has no {name}"));
    let modified = match (&attribute.value, rule.keeper) {
        (_, Keeper::Server | Keeper::ClientOnce) => {
            return Err(Failure::denied(format!("{name} is not changed by clients")));
        }
        (value, Keeper::LifeCycle) => {
            check_has_state(&object)?;
            let (date, at) = settable_date(value)?;
            object.life.date(date).ok_or_else(missing)?;
            object.life.set_date(date, at, now)?;
            Attribute::from(value.clone())
        }
        (AttributeValue::UsageLimits(limits), _) => {
            check_unused(&object.usage.ok_or_else(missing)?)?;
            object.usage = Some(Usage::new(limits.total, limits.unit));
            attribute_at(&object, &name, now)?
        }
        (value, _) => object.attributes.modify(value.clone(), attribute.index.unwrap_or_default().0)?,
    };
    object.note_protection();
    object.touch(now);
    let answer = AttributeResponse { unique_identifier: object.id.to_string(), attribute: modified };
    context.work.replace(object)?;
    Ok(answer)
}

/// The rule for an attribute that a client names.
pub(super) fn checked_rule(
    context: &Context<'_, '_>,
    value: &AttributeValue,
) -> Result<AttributeRule, Failure> {
    let name = value.name();
    if name.since() > context.version {
        return Err(Failure::invalid(format!("{name} is not an attribute of KMIP {}", context.version)));
    }
    rule(&name).ok_or_else(|| Failure::invalid(format!("{name} is not an attribute of objects here")))
}

/// Refuses usage limits that were drawn on.
pub(super) fn check_unused(usage: &Usage) -> Result<(), Failure> {
    if usage.begun {
        return Err(Failure::denied("some of the usage limits was allocated; they are fixed from then on"));
    }
    Ok(())
}

/// The date that an attribute sets.
pub(super) fn settable_date(value: &AttributeValue) -> Result<(SettableDate, UnixSeconds), Failure> {
    Ok(match value {
        AttributeValue::ActivationDate(at) => (SettableDate::Activation, (*at).into()),
        AttributeValue::ProcessStartDate(at) => (SettableDate::ProcessStart, (*at).into()),
        AttributeValue::ProtectStopDate(at) => (SettableDate::ProtectStop, (*at).into()),
        AttributeValue::DeactivationDate(at) => (SettableDate::Deactivation, (*at).into()),
        other => return Err(Failure::invalid(format!("{} is no date that a client sets", other.name()))),
    })
}

/// The object's current attribute.
pub(super) fn attribute_at(
    object: &Object,
    name: &AttributeName,
    now: UnixSeconds,
) -> Result<Attribute, Failure> {
    let all = object.attributes_at(ProtocolVersion::V1_4, now);
    all.into_iter().find(|attribute| attribute.name() == *name).ok_or_else(Failure::not_found)
}
