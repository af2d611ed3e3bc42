//! Create (KMIP 1.4, 4.1).

use strongroom_crypto::mac::sha256;
use strongroom_kmip::message::{CreateRequest, CreateResponse};
use strongroom_kmip::protocol::{
    AttributeValue, CryptographicAlgorithm, KeyBlock, KeyFormatType, ObjectType, ResultReason,
};
use strongroom_memory::secret::SecretBytes;

use super::Context;
use super::new_object::{Wanted, key_bytes};
use crate::failure::Failure;
use crate::objects::object::{Content, Material, Object};
use crate::objects::view::random_source;

/// Makes a symmetric key.
pub fn create(context: &mut Context<'_, '_>, request: &CreateRequest) -> Result<CreateResponse, Failure> {
    if request.object_type != ObjectType::SymmetricKey {
        return Err(Failure::invalid(format!("{} cannot be created, only registered", request.object_type)));
    }
    let wanted = Wanted::of(context, &request.template_attribute)?;
    let object = make_key(context, wanted)?;
    let answer = CreateResponse {
        object_type: ObjectType::SymmetricKey,
        unique_identifier: object.id.to_string(),
        template_attribute: None,
    };
    context.placeholder = Some(object.id);
    context.objects.push(object.id);
    context.work.add(object)?;
    Ok(answer)
}

/// A new key from the server's random source.
pub(super) fn make_key(context: &Context<'_, '_>, mut wanted: Wanted) -> Result<Object, Failure> {
    let missing = |what| Failure::new(ResultReason::MissingData, format!("a key needs a {what}"));
    let algorithm = wanted.algorithm().ok_or_else(|| missing("Cryptographic Algorithm"))?;
    let length_bits = wanted.length_bits().ok_or_else(|| missing("Cryptographic Length"))?;
    let key = SecretBytes::random(key_bytes(algorithm, length_bits)?)?;
    let digest = sha256(key.expose());
    wanted.attributes.set(AttributeValue::RandomNumberGenerator(random_source()));
    wanted.dates.original_creation = Some(context.work.now());
    let content = Content::Key { block: raw_block(algorithm, length_bits), material: Material::Present(key) };
    let mut object = wanted.into_object(context, ObjectType::SymmetricKey, content)?;
    object.digest = Some(digest);
    object.made_here = true;
    Ok(object)
}

/// The key block of a plain key, without its value.
fn raw_block(algorithm: CryptographicAlgorithm, length_bits: i32) -> KeyBlock {
    KeyBlock {
        key_format_type: KeyFormatType::Raw,
        key_compression_type: None,
        key_value: None,
        cryptographic_algorithm: Some(algorithm),
        cryptographic_length: Some(length_bits),
        key_wrapping_data: None,
    }
}
