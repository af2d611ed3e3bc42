//! Query (KMIP 1.4, 4.25).

use strongroom_kmip::message::{QueryRequest, QueryResponse, RequestPayload};
use strongroom_kmip::protocol::{
    CapabilityInformation, ClientRegistrationMethod, DestroyAction, ExtensionInformation, ObjectType,
    Operation, ProfileInformation, ProfileName, ProtocolVersion, QueryFunction, RngMode,
    STRONGROOM_GRANT_TAG, ShreddingAlgorithm, UnwrapMode,
};
use strongroom_kmip::ttlv::{Item, Tag, Type, Value};

use super::{Context, class_of};
use crate::objects::view::random_source;

/// The server's vendor.
pub const VENDOR: &str = "Strongroom";

const OBJECT_TYPES: [ObjectType; 4] =
    [ObjectType::SymmetricKey, ObjectType::SecretData, ObjectType::OpaqueObject, ObjectType::Template];

/// Answers the queried functions.
pub fn query(context: &Context<'_, '_>, request: &QueryRequest) -> QueryResponse {
    let version = context.version;
    let mut answer = QueryResponse::default();
    for function in &request.query_functions {
        match function {
            QueryFunction::Operations => {
                let is_offered = |operation: &Operation| {
                    class_of(*operation).is_some()
                        && operation.since() <= version
                        && context.settings.offers(*operation)
                };
                answer.operations = RequestPayload::OPERATIONS.iter().copied().filter(is_offered).collect();
            }
            QueryFunction::Objects => answer.object_types = OBJECT_TYPES.to_vec(),
            QueryFunction::ServerInformation => {
                answer.vendor_identification = Some(VENDOR.to_owned());
                answer.server_information = Some(server_information());
            }
            // Any namespace is accepted; the server generates data for none.
            QueryFunction::ApplicationNamespaces
            | QueryFunction::AttestationTypes
            | QueryFunction::Validations => {}
            QueryFunction::ExtensionList => answer.extension_information = vec![extension(false)],
            QueryFunction::ExtensionMap => answer.extension_information = vec![extension(true)],
            QueryFunction::Rngs => answer.rng_parameters = vec![random_source()],
            QueryFunction::Profiles => answer.profile_information = profiles(version),
            QueryFunction::Capabilities => answer.capability_information = vec![capabilities()],
            // Clients enrol outside KMIP.
            QueryFunction::ClientRegistrationMethods => {
                answer.client_registration_methods = vec![ClientRegistrationMethod::Unspecified];
            }
            QueryFunction::Other(_) => {}
        }
    }
    answer
}

/// The vendor's free text: the program and its version.
fn server_information() -> Value {
    let text = concat!("strongroom ", env!("CARGO_PKG_VERSION"));
    // The first tag of the vendors' range is the grant's; this is the second.
    let tag = Tag::from_number(Tag::EXTENSIONS_FIRST + 2);
    Value::Structure(tag.map(|tag| Item::text(tag, text)).into_iter().collect())
}

/// The one added tag: the signed grant in a credential.
fn extension(with_tag: bool) -> ExtensionInformation {
    ExtensionInformation {
        name: "STRONGROOM GRANT".to_owned(),
        tag: with_tag.then(|| i32::try_from(STRONGROOM_GRANT_TAG.number()).unwrap_or(i32::MAX)),
        kind: with_tag.then_some(Type::ByteString as i32),
    }
}

fn profiles(version: ProtocolVersion) -> Vec<ProfileInformation> {
    let names: &[ProfileName] =
        if version >= ProtocolVersion::V1_4 { &[ProfileName::BaselineServerBasicKmipV1_4] } else { &[] };
    names.iter().map(|name| ProfileInformation { name: *name, server_uri: None, server_port: None }).collect()
}

fn capabilities() -> CapabilityInformation {
    CapabilityInformation {
        streaming: Some(false),
        asynchronous: Some(false),
        attestation: Some(false),
        batch_undo: Some(true),
        batch_continue: Some(true),
        unwrap_mode: Some(UnwrapMode::NotProcessed),
        destroy_action: Some(DestroyAction::KeyMaterialDeleted),
        shredding_algorithm: Some(ShreddingAlgorithm::Unspecified),
        rng_mode: Some(RngMode::SharedInstantiation),
        client_registration_method: None,
    }
}
