//! Get Attributes and Get Attribute List (KMIP 1.4, 4.12 and 4.13).

use strongroom_kmip::message::{
    GetAttributeListResponse, GetAttributesRequest, GetAttributesResponse, UniqueIdentifierRequest,
};
use strongroom_kmip::protocol::{AttributeName, ResultReason};

use super::Context;
use crate::access::Role;
use crate::failure::Failure;

/// Returns attributes by name, or all, even of a destroyed object. Missing ones are left out.
pub fn get_attributes(
    context: &mut Context<'_, '_>,
    request: &GetAttributesRequest,
) -> Result<GetAttributesResponse, Failure> {
    let names = &request.attribute_names;
    if let Some(twice) = first_repeated(names) {
        return Err(Failure::new(
            ResultReason::InvalidMessage,
            format!("{twice} is asked for more than once"),
        ));
    }
    let mut object = context.object(request.unique_identifier.as_ref())?;
    // A host that holds the key relies on this answer.
    if context.caller.role() == Role::Host && !object.is_destroyed() {
        object = context.as_provider_says(object)?;
    }
    let mut attributes = object.attributes_at(context.version, context.work.now());
    if !names.is_empty() {
        attributes.retain(|attribute| names.contains(&attribute.name()));
        // In the requested order.
        attributes.sort_by_key(|attribute| names.iter().position(|name| *name == attribute.name()));
    }
    Ok(GetAttributesResponse { unique_identifier: object.id.to_string(), attributes })
}

/// The names of all attributes that an object has.
pub fn get_attribute_list(
    context: &mut Context<'_, '_>,
    request: &UniqueIdentifierRequest,
) -> Result<GetAttributeListResponse, Failure> {
    let object = context.object(request.unique_identifier.as_ref())?;
    let mut attribute_names: Vec<AttributeName> = Vec::new();
    for attribute in object.attributes_at(context.version, context.work.now()) {
        let name = attribute.name();
        if !attribute_names.contains(&name) {
            attribute_names.push(name);
        }
    }
    Ok(GetAttributeListResponse { unique_identifier: object.id.to_string(), attribute_names })
}

fn first_repeated(names: &[AttributeName]) -> Option<&AttributeName> {
    names.iter().enumerate().find(|(place, name)| names[..*place].contains(name)).map(|(_, name)| name)
}
