//! Re-key (KMIP 1.4, 4.4).

use strongroom_kmip::message::{ReKeyRequest, ReKeyResponse};
use strongroom_kmip::protocol::{AttributeName, AttributeValue, Link, LinkType, TemplateAttribute};

use super::Context;
use super::create::make_key;
use super::new_object::Wanted;
use crate::failure::Failure;
use crate::objects::attributes::{Keeper, rule};
use crate::objects::clock::UnixSeconds;
use crate::objects::lifecycle::{RequestedDates, SettableDate};
use crate::objects::object::{Object, Usage};

/// Makes a key that replaces another: it receives the old key's names and other attributes, and
/// each links to the other. The old key keeps everything but its names.
pub fn re_key(context: &mut Context<'_, '_>, request: &ReKeyRequest) -> Result<ReKeyResponse, Failure> {
    let mut old = context.online_object(request.unique_identifier.as_ref())?;
    if old.plain_key().is_none() {
        return Err(Failure::invalid(
            "only a symmetric key that the server has in the clear can be re-keyed",
        ));
    }
    if old.attributes.all(&AttributeName::Link).any(|link| is_link(link, LinkType::ReplacementObject)) {
        return Err(Failure::denied("the key has been replaced already"));
    }
    let now = context.work.now();
    let asked = request
        .template_attribute
        .clone()
        .unwrap_or_else(|| TemplateAttribute { templates: Vec::new(), attributes: Vec::new() });
    let mut wanted = Wanted::of(context, &asked)?;
    let names = old.attributes.remove_all(&AttributeName::Name);
    inherit(&mut wanted, &old, names);
    let offset_seconds = request.offset.map(|offset| i64::from(offset.0));
    wanted.dates = new_dates(&old, wanted.dates, offset_seconds, now);

    let mut new = make_key(context, wanted)?;
    new.attributes.add(link(LinkType::ReplacedObject, &old), true)?;
    old.attributes.add(link(LinkType::ReplacementObject, &new), true)?;
    old.touch(now);
    let answer = ReKeyResponse { unique_identifier: new.id.to_string(), template_attribute: None };
    context.placeholder = Some(new.id);
    context.objects.push(new.id);
    // The old key must give up its names before the new one takes them.
    context.work.replace(old)?;
    context.work.add(new)?;
    Ok(answer)
}

/// Copies attributes of the old key that the request does not set, in the old key's order. Links
/// are not inherited.
fn inherit(wanted: &mut Wanted, old: &Object, names: Vec<AttributeValue>) {
    let asked = std::mem::take(&mut wanted.attributes);
    let inherited =
        names.into_iter().chain(old.attributes.to_attributes().into_iter().map(|attribute| attribute.value));
    let asked_values: Vec<AttributeValue> =
        asked.to_attributes().into_iter().map(|attribute| attribute.value).collect();
    for value in inherited {
        let name = value.name();
        let many = rule(&name).is_some_and(|rule| rule.many);
        let replaced = !many && asked_values.iter().any(|asked| asked.name() == name);
        let made_anew = matches!(name, AttributeName::Link | AttributeName::RandomNumberGenerator);
        if !replaced && !made_anew && !wanted.attributes.has(&value) {
            // No more than the old key had, so the limit holds.
            let _ = wanted.attributes.add(value, many);
        }
    }
    for value in asked_values {
        let many = rule(&value.name()).is_some_and(|rule| rule.many && rule.keeper != Keeper::Server);
        if !wanted.attributes.has(&value) {
            let _ = wanted.attributes.add(value, many);
        }
    }
    if wanted.usage.is_none() {
        wanted.usage = old.usage.map(|usage| Usage::new(usage.total, usage.unit()));
    }
}

/// The dates of the new key. With an offset, it becomes active after that time, and its other dates
/// shift with it (KMIP 1.4, table 187). Without one it has the old key's dates, unless the request
/// sets others.
fn new_dates(
    old: &Object,
    asked: RequestedDates,
    offset_seconds: Option<i64>,
    now: UnixSeconds,
) -> RequestedDates {
    let old_date = |date| old.life.date(date);
    let old_activation = old_date(SettableDate::Activation);
    let (activation, shift_seconds) = match offset_seconds {
        Some(offset_seconds) => {
            let activation = now.plus_seconds(offset_seconds);
            (Some(activation), old_activation.map_or(0, |old| activation.seconds_since(old)))
        }
        None => (old_activation, 0),
    };
    let shifted = |date| old_date(date).map(|date: UnixSeconds| date.plus_seconds(shift_seconds));
    RequestedDates {
        activation: asked.activation.or(activation),
        process_start: asked.process_start.or_else(|| shifted(SettableDate::ProcessStart)),
        protect_stop: asked.protect_stop.or_else(|| shifted(SettableDate::ProtectStop)),
        deactivation: asked.deactivation.or_else(|| match offset_seconds {
            // An early deactivation of the old key does not apply to the new one.
            None if old.revocation.is_some() => None,
            _ => shifted(SettableDate::Deactivation),
        }),
        original_creation: None,
    }
}

fn link(kind: LinkType, to: &Object) -> AttributeValue {
    AttributeValue::Link(Link { kind, object: to.id.to_string() })
}

fn is_link(value: &AttributeValue, kind: LinkType) -> bool {
    matches!(value, AttributeValue::Link(link) if link.kind == kind)
}
