//! Get (KMIP 1.4, 4.11).

use strongroom_kmip::codec::{Codec, Fields, Member, RawStructure, Rules, UnknownFields};
use strongroom_kmip::message::{GetRequest, GetResponse};
use strongroom_kmip::protocol::{
    KeyBlock, KeyContent, KeyFormatType, KeyMaterial, KeyValue, KeyWrapType, ManagedObject, OpaqueObject,
    RawObject, ResultReason, SecretData,
};
use strongroom_kmip::ttlv::{ByteString, Limits, Structure, Tag, write_exactly};

use super::wrap::wrap;
use super::{Context, Released};
use crate::failure::Failure;
use crate::objects::attributes::AttributeSet;
use crate::objects::object::{Content, Material, Object};

/// Releases an object, plain or wrapped under another of the caller's keys.
pub fn get(context: &mut Context<'_, '_>, request: &GetRequest) -> Result<GetResponse, Failure> {
    if request.key_compression_type.is_some() {
        return Err(Failure::new(
            ResultReason::KeyCompressionTypeNotSupported,
            "a symmetric key is not compressed",
        ));
    }
    let mut object = context.online_object(request.unique_identifier.as_ref())?;
    let given = value_of(context, &object, request)?;
    let unique_identifier = object.id.to_string();
    if object.fresh && context.released.is_some() {
        object.fresh = false;
        context.work.replace(object)?;
    }
    Ok(GetResponse { unique_identifier, object: given })
}

fn value_of(
    context: &mut Context<'_, '_>,
    object: &Object,
    request: &GetRequest,
) -> Result<ManagedObject, Failure> {
    let wrapping = request.key_wrapping_specification.as_ref();
    let (block, material) = match &object.content {
        Content::Template { attributes } => return template(context, object, attributes),
        Content::Opaque { kind, material } => {
            if request.key_format_type.is_some() || wrapping.is_some() {
                return Err(Failure::new(
                    ResultReason::KeyFormatTypeNotSupported,
                    "an opaque object has no format",
                ));
            }
            let Material::Present(bytes) = material else { return Err(Failure::not_found()) };
            context.released = Some(Released { wrapped: false });
            return Ok(ManagedObject::OpaqueObject(OpaqueObject {
                opaque_data_type: *kind,
                value: bytes.into(),
            }));
        }
        Content::Key { block, material } | Content::Secret { block, material, .. } => (block, material),
    };

    let wrapped_elsewhere = block.key_wrapping_data.is_some();
    check_may_leave(object, wrapping.is_some() || wrapped_elsewhere)?;
    let key_value = match material {
        Material::Absent if object.upstream.is_some() => {
            let format = given_format(object, request)?;
            Some(KeyValue::Content(KeyContent {
                material: in_format(upstream_key(context, object)?, format),
                attributes: Vec::new(),
            }))
        }
        Material::Absent if wrapping.is_some() => {
            return Err(Failure::new(ResultReason::KeyValueNotPresent, "the key itself is kept elsewhere"));
        }
        Material::Absent => None,
        Material::WrappedContent(bytes) => Some(KeyValue::WrappedContent(bytes.into())),
        Material::Present(bytes) => Some(KeyValue::Content(KeyContent {
            material: in_format(bytes.into(), given_format(object, request)?),
            attributes: Vec::new(),
        })),
    };
    let mut given = KeyBlock {
        key_format_type: match key_value {
            Some(KeyValue::Content(_)) => given_format(object, request)?,
            _ => block.key_format_type,
        },
        key_value,
        ..block.clone()
    };
    if let Some(specification) = wrapping {
        if wrapped_elsewhere {
            return Err(Failure::new(
                ResultReason::IllegalOperation,
                "the key is wrapped already, as it was registered",
            ));
        }
        given = wrap(context, object, given, specification)?;
    } else if wrapped_elsewhere && request.key_wrap_type == Some(KeyWrapType::NotWrapped) {
        return Err(Failure::not_offered("a key that was registered wrapped is not unwrapped here"));
    }
    if given.key_value.is_some() {
        context.released = Some(Released { wrapped: given.key_wrapping_data.is_some() });
    }
    Ok(match &object.content {
        Content::Secret { kind, .. } => {
            ManagedObject::SecretData(SecretData { secret_data_type: *kind, key_block: given })
        }
        _ => ManagedObject::SymmetricKey(given),
    })
}

/// The key at its external provider.
fn upstream_key(context: &mut Context<'_, '_>, object: &Object) -> Result<ByteString, Failure> {
    let key = object.upstream.as_ref().ok_or_else(Failure::not_found)?;
    Ok(context.key_of_provider(key)?.into())
}

/// Sensitive and Extractable (KMIP 1.4, 3.48 and 3.50).
fn check_may_leave(object: &Object, wrapped: bool) -> Result<(), Failure> {
    if !object.is_extractable() {
        return Err(Failure::new(ResultReason::NotExtractable, "the object is not extractable"));
    }
    if object.is_sensitive() && !wrapped {
        return Err(Failure::new(ResultReason::Sensitive, "the object is sensitive; it leaves wrapped only"));
    }
    Ok(())
}

/// The requested format, or the one that the object was registered in.
fn given_format(object: &Object, request: &GetRequest) -> Result<KeyFormatType, Failure> {
    use KeyFormatType::{Opaque, Raw, TransparentSymmetricKey};
    let own = object.default_format();
    match (own, request.key_format_type.unwrap_or(own)) {
        (Raw | TransparentSymmetricKey, asked @ (Raw | TransparentSymmetricKey))
            if object.plain_key().is_some() || object.upstream.is_some() =>
        {
            Ok(asked)
        }
        // A secret's bytes are the same under either name.
        (Raw | Opaque, asked @ (Raw | Opaque)) => Ok(asked),
        (own, asked) if own == asked => Ok(asked),
        (_, asked) => Err(Failure::new(
            ResultReason::KeyFormatTypeNotSupported,
            format!("the object cannot be given out as {asked}"),
        )),
    }
}

fn in_format(bytes: ByteString, format: KeyFormatType) -> KeyMaterial {
    match format {
        KeyFormatType::TransparentSymmetricKey => KeyMaterial::TransparentSymmetricKey(bytes),
        _ => KeyMaterial::Bytes(bytes),
    }
}

/// A template's value is its attributes for other objects.
fn template(
    context: &Context<'_, '_>,
    object: &Object,
    attributes: &AttributeSet,
) -> Result<ManagedObject, Failure> {
    let version = context.version;
    let encoded = write_exactly(|writer| {
        writer.structure(Tag::TEMPLATE_ATTRIBUTE, |writer| {
            writer.structure(Tag::TEMPLATE, |writer| {
                for attribute in attributes.to_attributes() {
                    attribute.encode(Tag::ATTRIBUTE, version, writer);
                }
            });
        });
    });
    let structure = Structure::parse(&encoded, Tag::TEMPLATE_ATTRIBUTE, &Limits::default())
        .map_err(|error| Failure::internal(&error))?;
    let rules = Rules { version, unknown_fields: UnknownFields::Refuse };
    let content: RawStructure = Member::take(Tag::TEMPLATE, &mut Fields::new(structure, rules))?;
    Ok(ManagedObject::Raw(RawObject { object_type: object.object_type, tag: Tag::TEMPLATE, content }))
}
