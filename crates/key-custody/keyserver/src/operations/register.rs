//! Register (KMIP 1.4, 4.3).

use strongroom_crypto::mac::sha256;
use strongroom_kmip::codec::{Fields, Member, Rules, UnknownFields};
use strongroom_kmip::message::{RegisterRequest, RegisterResponse};
use strongroom_kmip::protocol::{
    Attribute, AttributeName, AttributeValue, KeyBlock, KeyFormatType, KeyMaterial, KeyValue, ManagedObject,
    ObjectType, RawObject, ResultReason,
};
use strongroom_kmip::ttlv::{ByteString, Limits, Structure, Tag, write_exactly};
use strongroom_memory::secret::SecretBytes;

use super::Context;
use super::new_object::{Wanted, key_bytes};
use crate::failure::Failure;
use crate::objects::attributes::{AttributeRule, AttributeSet, Keeper, rule};
use crate::objects::object::{Content, Material};

/// Registers an object: a symmetric key (plain, wrapped, or kept elsewhere), secret data, an opaque
/// object, a template.
pub fn register(
    context: &mut Context<'_, '_>,
    request: &RegisterRequest,
) -> Result<RegisterResponse, Failure> {
    let mut wanted = Wanted::of(context, &request.template_attribute)?;
    let object_type = request.object.object_type();
    let mut digest = None;
    let content = match &request.object {
        ManagedObject::SymmetricKey(block) => {
            let value = TakenValue::of(context, &mut wanted, block)?;
            agree_with_block(&mut wanted, block, &value.material)?;
            digest = value.digest;
            Content::Key { block: without_value(block), material: value.material }
        }
        ManagedObject::SecretData(secret) => {
            let value = TakenValue::of(context, &mut wanted, &secret.key_block)?;
            digest = value.digest;
            Content::Secret {
                kind: secret.secret_data_type,
                block: without_value(&secret.key_block),
                material: value.material,
            }
        }
        ManagedObject::OpaqueObject(opaque) => Content::Opaque {
            kind: opaque.opaque_data_type,
            material: Material::Present(opaque.value.clone().into_secret()?),
        },
        ManagedObject::Raw(raw) if raw.object_type == ObjectType::Template => {
            let mut attributes = AttributeSet::default();
            for attribute in template_attributes(context, raw)? {
                let value = attribute.value;
                let rule = rule_for_template(&value)?;
                // A template's name is its own, wherever it appears.
                if let AttributeValue::Name(_) = value {
                    wanted.take(&value, context)?;
                } else {
                    attributes.add(value, rule.many)?;
                }
            }
            Content::Template { attributes }
        }
        _ => return Err(Failure::invalid(format!("objects of type {object_type} are not kept here"))),
    };
    let mut object = wanted.into_object(context, object_type, content)?;
    object.digest = digest;
    let answer = RegisterResponse { unique_identifier: object.id.to_string(), template_attribute: None };
    context.placeholder = Some(object.id);
    context.objects.push(object.id);
    context.work.add(object)?;
    Ok(answer)
}

/// The value of a key block.
struct TakenValue {
    material: Material,
    /// SHA-256 of the key material in its format, if it is readable.
    digest: Option<[u8; 32]>,
}

impl TakenValue {
    fn of(context: &Context<'_, '_>, wanted: &mut Wanted, block: &KeyBlock) -> Result<Self, Failure> {
        if block.key_compression_type.is_some() {
            return Err(Failure::new(
                ResultReason::KeyCompressionTypeNotSupported,
                "a symmetric key is not compressed",
            ));
        }
        let Some(value) = &block.key_value else {
            if wanted.attributes.get(&AttributeName::KeyValueLocation).is_none() {
                return Err(Failure::new(
                    ResultReason::KeyValueNotPresent,
                    "a key without its value needs a Key Value Location",
                ));
            }
            return Ok(Self { material: Material::Absent, digest: None });
        };
        match value {
            KeyValue::WrappedContent(bytes) => {
                if block.key_wrapping_data.is_none() {
                    return Err(Failure::invalid("a key value that cannot be seen needs Key Wrapping Data"));
                }
                Ok(Self {
                    material: Material::WrappedContent(secret(bytes)?),
                    digest: Some(sha256(bytes.expose())),
                })
            }
            KeyValue::Content(content) => {
                for attribute in &content.attributes {
                    wanted.take(&attribute.value, context)?;
                }
                let bytes = match (&content.material, block.key_format_type) {
                    (KeyMaterial::Bytes(bytes), KeyFormatType::Raw | KeyFormatType::Opaque)
                    | (KeyMaterial::TransparentSymmetricKey(bytes), KeyFormatType::TransparentSymmetricKey) => {
                        bytes
                    }
                    _ => {
                        return Err(Failure::new(
                            ResultReason::KeyFormatTypeNotSupported,
                            format!("{} is not a format of symmetric keys here", block.key_format_type),
                        ));
                    }
                };
                let digest = match block.key_format_type {
                    // The digest covers the encoded structure of the material.
                    KeyFormatType::TransparentSymmetricKey => sha256(&write_exactly(|writer| {
                        writer.structure(Tag::KEY_MATERIAL, |writer| writer.bytes(Tag::KEY, bytes.expose()));
                    })),
                    _ => sha256(bytes.expose()),
                };
                Ok(Self { material: Material::Present(secret(bytes)?), digest: Some(digest) })
            }
        }
    }
}

/// Checks algorithm and length: they are in the key block, the attributes or both, must agree, and
/// must match the key.
fn agree_with_block(wanted: &mut Wanted, block: &KeyBlock, material: &Material) -> Result<(), Failure> {
    let from_block = [
        block.cryptographic_algorithm.map(AttributeValue::CryptographicAlgorithm),
        block.cryptographic_length.map(AttributeValue::CryptographicLength),
    ];
    for value in from_block.into_iter().flatten() {
        match wanted.attributes.get(&value.name()) {
            Some(asked) if *asked != value => {
                return Err(Failure::invalid(format!("{} is another in the key block", value.name())));
            }
            Some(_) => {}
            None => wanted.attributes.set(value),
        }
    }
    if let (Material::Present(key), None, Some(algorithm), Some(length_bits)) =
        (material, &block.key_wrapping_data, wanted.algorithm(), wanted.length_bits())
        && key_bytes(algorithm, length_bits)? != key.len()
    {
        return Err(Failure::invalid(format!("the key has {} bytes, not {length_bits} bits", key.len())));
    }
    Ok(())
}

fn without_value(block: &KeyBlock) -> KeyBlock {
    KeyBlock {
        key_format_type: block.key_format_type,
        key_compression_type: None,
        key_value: None,
        cryptographic_algorithm: block.cryptographic_algorithm,
        cryptographic_length: block.cryptographic_length,
        key_wrapping_data: block.key_wrapping_data.clone(),
    }
}

fn secret(bytes: &ByteString) -> Result<SecretBytes, Failure> {
    let mut secret = SecretBytes::zeroed(bytes.len())?;
    secret.expose_mut().copy_from_slice(bytes.expose());
    Ok(secret)
}

/// The rule for an attribute in a template.
fn rule_for_template(value: &AttributeValue) -> Result<AttributeRule, Failure> {
    let name = value.name();
    rule(&name)
        .filter(|rule| rule.keeper != Keeper::Server)
        .ok_or_else(|| Failure::invalid(format!("{name} is not set by templates")))
}

/// Reads a template, which holds only attributes.
fn template_attributes(context: &Context<'_, '_>, raw: &RawObject) -> Result<Vec<Attribute>, Failure> {
    let rules = Rules { version: context.version, unknown_fields: UnknownFields::Refuse };
    let encoded = write_exactly(|writer| {
        writer.structure(Tag::TEMPLATE, |writer| writer.encoded(raw.content.expose()))
    });
    let structure = Structure::parse(&encoded, Tag::TEMPLATE, &Limits::default())
        .map_err(|error| Failure::invalid(error.to_string()))?;
    let mut fields = Fields::new(structure, rules);
    let attributes = Member::take(Tag::ATTRIBUTE, &mut fields)?;
    fields.finish()?;
    Ok(attributes)
}
