//! Locate (KMIP 1.4, 4.9).

use std::collections::HashMap;

use parking_lot::Mutex;
use strongroom_kmip::message::{LocateRequest, LocateResponse};
use strongroom_kmip::protocol::{
    Attribute, AttributeValue, ObjectGroupMember, ProtocolVersion, StorageStatusMask,
};
use strongroom_kmip::ttlv::DateTime;

use super::Context;
use crate::access::{ClientId, OperationClass, Scope, scope};
use crate::failure::Failure;
use crate::objects::clock::UnixSeconds;
use crate::objects::id::ObjectId;
use crate::objects::object::Object;

/// Most groups whose turn is remembered. A forgotten group starts again.
const TURNS_MAX: usize = 4096;

/// The last default member of each group: a group's members take turns (KMIP 1.4, 4.9, Object Group
/// Member).
#[derive(Debug, Default)]
pub struct GroupTurns(Mutex<HashMap<(ClientId, String), ObjectId>>);

impl GroupTurns {
    /// The next of `members`, which are sorted.
    fn next(&self, owner: ClientId, group: &str, members: &[ObjectId]) -> Option<ObjectId> {
        let mut turns = self.0.lock();
        let key = (owner, group.to_owned());
        let last = turns.get(&key).and_then(|last| members.iter().position(|member| member == last));
        let next = *members.get(last.map_or(0, |last| last + 1)).or_else(|| members.first())?;
        if turns.len() >= TURNS_MAX {
            turns.clear();
        }
        turns.insert(key, next);
        Some(next)
    }
}

/// Finds the objects with all the requested attributes, oldest first.
pub fn locate(context: &mut Context<'_, '_>, request: &LocateRequest) -> Result<LocateResponse, Failure> {
    let limit = |asked: Option<i32>, what| match asked {
        None => Ok(None),
        Some(number) => {
            usize::try_from(number).map(Some).map_err(|_| Failure::invalid(format!("{what} is not negative")))
        }
    };
    let maximum = limit(request.maximum_items, "Maximum Items")?;
    let offset = limit(request.offset_items, "Offset Items")?.unwrap_or(0);

    let filter = Filter::of(context, request);
    let mut found: Vec<ObjectId> = candidates(context, request)?
        .iter()
        .filter(|object| filter.matches(object))
        .map(|object| object.id)
        .collect();
    if request.object_group_member == Some(ObjectGroupMember::Default)
        && let Some(group) = group_of(request)
    {
        found = context.turns.next(context.caller.client(), group, &found).into_iter().collect();
    }
    let total = found.len();
    let given: Vec<ObjectId> = found.into_iter().skip(offset).take(maximum.unwrap_or(usize::MAX)).collect();
    // The batch continues with the found object if there is exactly one; several would be
    // ambiguous.
    context.placeholder = match given.as_slice() {
        [one] => Some(*one),
        _ => None,
    };
    let left_out = total.saturating_sub(offset).saturating_sub(given.len());
    Ok(LocateResponse {
        located_items: request
            .maximum_items
            .map(|_| i32::try_from(left_out).unwrap_or(i32::MAX))
            .filter(|left| *left > 0),
        unique_identifiers: given.iter().map(ToString::to_string).collect(),
    })
}

/// The objects visible to the caller, narrowed down by an index if possible.
fn candidates(context: &mut Context<'_, '_>, request: &LocateRequest) -> Result<Vec<Object>, Failure> {
    let caller = context.caller;
    let owner = match scope(caller.role(), OperationClass::ReadMetadata) {
        Scope::All => None,
        Scope::Own => Some(caller.client()),
        Scope::Granted => {
            let granted = caller.grant().map(|grant| grant.grant().objects()).unwrap_or_default();
            let mut found = Vec::new();
            for text in granted {
                // Objects that the grant names for other operations, and destroyed ones, are simply
                // not found.
                if let Ok(object) = context.object_for(Some(text), OperationClass::ReadMetadata)
                    && !object.is_destroyed()
                {
                    found.push(object);
                }
            }
            return Ok(found);
        }
        Scope::Nothing => return Err(Failure::denied("the role may not look for objects")),
    };
    let by_name = request.attributes.iter().find_map(|attribute| match &attribute.value {
        AttributeValue::Name(name) => Some(name.value.as_str()),
        _ => None,
    });
    match (owner, by_name) {
        (Some(owner), Some(name)) => {
            let found = context.work.named(owner, name)?;
            Ok(found.map(|id| context.work.load(id)).transpose()?.into_iter().collect())
        }
        (None, Some(name)) => Ok(context.work.namesakes(name)?),
        (_, None) => Ok(context.work.live(owner)?),
    }
}

struct Filter<'a> {
    attributes: &'a [Attribute],
    online: bool,
    archived: bool,
    fresh_only: bool,
    version: ProtocolVersion,
    now: UnixSeconds,
}

impl<'a> Filter<'a> {
    fn of(context: &Context<'_, '_>, request: &'a LocateRequest) -> Self {
        let mask = request.storage_status_mask.unwrap_or(StorageStatusMask::ON_LINE);
        Self {
            attributes: &request.attributes,
            online: mask.contains(StorageStatusMask::ON_LINE),
            archived: mask.contains(StorageStatusMask::ARCHIVAL),
            fresh_only: request.object_group_member == Some(ObjectGroupMember::Fresh),
            version: context.version,
            now: context.work.now(),
        }
    }

    fn matches(&self, object: &Object) -> bool {
        let stored = if object.life.archived().is_some() { self.archived } else { self.online };
        if !stored || (self.fresh_only && !object.fresh) {
            return false;
        }
        let has = object.attributes_at(self.version, self.now);
        self.attributes.iter().all(|asked| self.has(&has, &asked.value))
    }

    fn has(&self, has: &[Attribute], asked: &AttributeValue) -> bool {
        let name = asked.name();
        let mut values =
            has.iter().filter(|attribute| attribute.name() == name).map(|attribute| &attribute.value);
        if let Some(asked_date) = date_of(asked) {
            // Two dates of one name are the ends of a range.
            let ends: Vec<DateTime> = self
                .attributes
                .iter()
                .filter(|attribute| attribute.name() == name)
                .filter_map(|attribute| date_of(&attribute.value))
                .collect();
            return values.filter_map(date_of).any(|date| match ends.as_slice() {
                [one, other] => *one.min(other) <= date && date <= *one.max(other),
                _ => date == asked_date,
            });
        }
        values.any(|value| match (value, asked) {
            (AttributeValue::CryptographicUsageMask(mask), AttributeValue::CryptographicUsageMask(asked)) => {
                mask.contains(*asked)
            }
            (
                AttributeValue::ApplicationSpecificInformation(information),
                AttributeValue::ApplicationSpecificInformation(asked),
            ) => {
                information.namespace == asked.namespace
                    && (asked.data.is_none() || information.data == asked.data)
            }
            (value, asked) => value == asked,
        })
    }
}

fn group_of(request: &LocateRequest) -> Option<&str> {
    request.attributes.iter().find_map(|attribute| match &attribute.value {
        AttributeValue::ObjectGroup(group) => Some(group.as_str()),
        _ => None,
    })
}

fn date_of(value: &AttributeValue) -> Option<DateTime> {
    match value {
        AttributeValue::InitialDate(date)
        | AttributeValue::ActivationDate(date)
        | AttributeValue::ProcessStartDate(date)
        | AttributeValue::ProtectStopDate(date)
        | AttributeValue::DeactivationDate(date)
        | AttributeValue::DestroyDate(date)
        | AttributeValue::CompromiseOccurrenceDate(date)
        | AttributeValue::CompromiseDate(date)
        | AttributeValue::ArchiveDate(date)
        | AttributeValue::LastChangeDate(date)
        | AttributeValue::OriginalCreationDate(date) => Some(*date),
        _ => None,
    }
}
