//! The operations, one call each.

use strongroom_memory::secret::SecretBytes;

use super::Client;
use super::error::ClientError;
use crate::message::{
    AddAttributeRequest, DiscoverVersionsRequest, GetAttributesRequest, GetRequest, LocateRequest,
    QueryRequest, QueryResponse, RegisterRequest, RequestPayload, ResponsePayload, RevokeRequest,
    UniqueIdentifierRequest,
};
use crate::protocol::{
    Attribute, AttributeName, AttributeValue, BlockCipherMode, CryptographicAlgorithm,
    CryptographicParameters, CryptographicUsageMask, EncodingOption, EncryptionKeyInformation, KeyBlock,
    KeyValue, KeyWrappingSpecification, ManagedObject, ProtocolVersion, QueryFunction, RevocationReason,
    RevocationReasonCode, State, TemplateAttribute, WrappingMethod,
};
use crate::ttlv::DateTime;

/// A symmetric key.
#[derive(Debug)]
pub struct GotKey {
    /// The key.
    pub secret: SecretBytes,
    /// Its algorithm, if the server states it.
    pub algorithm: Option<CryptographicAlgorithm>,
}

/// A symmetric key under another one: AES key wrap (RFC 3394).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrappedKey {
    /// The wrapped bytes.
    pub bytes: Vec<u8>,
    /// The form of the wrapped content: the key's bytes, or a Key Value structure around them.
    pub encoding: EncodingOption,
}

/// Ends a method: returns the answer to its own operation, or an error for any other.
macro_rules! answer_of {
    ($client:expr, $operation:ident, $payload:expr) => {
        match $client.call(RequestPayload::$operation($payload))? {
            ResponsePayload::$operation(answer) => answer,
            other => {
                let operation = other.operation();
                return Err($client.nonsense(format!("it answers with {operation}")));
            }
        }
    };
}

fn object(id: &str) -> UniqueIdentifierRequest {
    UniqueIdentifierRequest { unique_identifier: Some(id.to_owned()) }
}

impl Client {
    /// The versions that the server claims to speak.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::OperationTooNew`] of a server of KMIP 1.0.
    pub fn discover_versions(&self) -> Result<Vec<ProtocolVersion>, ClientError> {
        Ok(answer_of!(self, DiscoverVersions, DiscoverVersionsRequest::default()).protocol_versions)
    }

    /// The server's capabilities.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn query(&self, functions: &[QueryFunction]) -> Result<QueryResponse, ClientError> {
        Ok(answer_of!(self, Query, QueryRequest { query_functions: functions.to_vec() }))
    }

    /// Registers a key and returns its identifier.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn register_key(
        &self,
        algorithm: CryptographicAlgorithm,
        secret: &SecretBytes,
        mask: CryptographicUsageMask,
        attributes: Vec<AttributeValue>,
    ) -> Result<String, ClientError> {
        let bits = i32::try_from(secret.len() * 8).unwrap_or(i32::MAX);
        let own = [
            AttributeValue::CryptographicAlgorithm(algorithm),
            AttributeValue::CryptographicLength(bits),
            AttributeValue::CryptographicUsageMask(mask),
        ];
        let attributes = own.into_iter().chain(attributes).map(Attribute::from).collect();
        let request = RegisterRequest {
            template_attribute: TemplateAttribute { templates: Vec::new(), attributes },
            object: ManagedObject::SymmetricKey(KeyBlock::raw(algorithm, secret)),
        };
        Ok(answer_of!(self, Register, request).unique_identifier)
    }

    /// Makes a pre-active object active.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn activate(&self, id: &str) -> Result<(), ClientError> {
        answer_of!(self, Activate, object(id));
        Ok(())
    }

    /// A symmetric key.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Protocol`] if the object is not an unwrapped key.
    pub fn get(&self, id: &str) -> Result<GotKey, ClientError> {
        let request = GetRequest { unique_identifier: Some(id.to_owned()), ..GetRequest::default() };
        let answer = answer_of!(self, Get, request);
        if answer.unique_identifier != id {
            return Err(self.nonsense("it gives another object than was asked for"));
        }
        self.plain_key(answer.object)
    }

    /// The key in an object, moved into secret memory.
    pub(super) fn plain_key(&self, object: ManagedObject) -> Result<GotKey, ClientError> {
        let ManagedObject::SymmetricKey(block) = object else {
            return Err(
                self.nonsense(format!("the object is a {}, not a symmetric key", object.object_type()))
            );
        };
        let bits = block.cryptographic_length.and_then(|bits| usize::try_from(bits).ok());
        let algorithm = block.cryptographic_algorithm;
        let bytes = match (block.key_wrapping_data, block.key_value) {
            (None, Some(KeyValue::Content(content))) => content.material.bytes().cloned(),
            _ => None,
        };
        let bytes = bytes.ok_or_else(|| self.nonsense("the key is wrapped, or not in one piece"))?;
        if bits.is_some_and(|bits| bits != bytes.len() * 8) {
            return Err(
                self.nonsense(format!("a key of {} bytes is said to have {bits:?} bits", bytes.len()))
            );
        }
        Ok(GotKey { secret: bytes.into_secret()?, algorithm })
    }

    /// A symmetric key, wrapped by the server under another of its keys.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get_wrapped(&self, id: &str, wrapping_key: &str) -> Result<WrappedKey, ClientError> {
        let parameters = CryptographicParameters {
            block_cipher_mode: Some(BlockCipherMode::NistKeyWrap),
            ..CryptographicParameters::default()
        };
        // KMIP 1.0 has no such option: it always wraps the encoded Key Value.
        let asked = (self.version()? > ProtocolVersion::V1_0).then_some(EncodingOption::NoEncoding);
        let specification = KeyWrappingSpecification {
            wrapping_method: WrappingMethod::Encrypt,
            encryption_key: Some(EncryptionKeyInformation {
                unique_identifier: wrapping_key.to_owned(),
                cryptographic_parameters: Some(parameters),
            }),
            mac_signature_key: None,
            attribute_names: Vec::new(),
            encoding_option: asked,
        };
        let request = GetRequest {
            unique_identifier: Some(id.to_owned()),
            key_wrapping_specification: Some(specification),
            ..GetRequest::default()
        };
        let answer = answer_of!(self, Get, request);
        let ManagedObject::SymmetricKey(block) = answer.object else {
            return Err(self.nonsense("the object is no symmetric key"));
        };
        let Some(wrapping) = block.key_wrapping_data else {
            return Err(self.nonsense("the key is not wrapped"));
        };
        let bytes = match &block.key_value {
            Some(KeyValue::WrappedContent(bytes)) => Some(bytes),
            Some(KeyValue::Content(content)) => content.material.bytes(),
            None => None,
        };
        let bytes = bytes.ok_or_else(|| self.nonsense("no wrapped key came"))?.expose().to_vec();
        Ok(WrappedKey { bytes, encoding: wrapping.encoding_option.unwrap_or(EncodingOption::TtlvEncoding) })
    }

    /// Attributes of an object; all if none is named.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get_attributes(
        &self,
        id: &str,
        names: &[AttributeName],
    ) -> Result<Vec<AttributeValue>, ClientError> {
        let request =
            GetAttributesRequest { unique_identifier: Some(id.to_owned()), attribute_names: names.to_vec() };
        let answer = answer_of!(self, GetAttributes, request);
        Ok(answer.attributes.into_iter().map(|attribute| attribute.value).collect())
    }

    /// An object's state.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn state(&self, id: &str) -> Result<State, ClientError> {
        let attributes = self.get_attributes(id, &[AttributeName::State])?;
        let state = attributes.into_iter().find_map(|attribute| match attribute {
            AttributeValue::State(state) => Some(state),
            _ => None,
        });
        state.ok_or_else(|| self.nonsense("it gives no state"))
    }

    /// The names of an object's attributes.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get_attribute_list(&self, id: &str) -> Result<Vec<AttributeName>, ClientError> {
        Ok(answer_of!(self, GetAttributeList, object(id)).attribute_names)
    }

    /// Adds an attribute to an object.
    ///
    /// # Errors
    /// [`ClientError`];
    /// [`ResultReason::OperationNotSupported`](crate::protocol::ResultReason::OperationNotSupported)
    /// by servers that do not offer it.
    pub fn add_attribute(&self, id: &str, attribute: AttributeValue) -> Result<(), ClientError> {
        let request =
            AddAttributeRequest { unique_identifier: Some(id.to_owned()), attribute: attribute.into() };
        answer_of!(self, AddAttribute, request);
        Ok(())
    }

    /// The objects that have all these attributes, at most `items_max`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn locate(
        &self,
        attributes: Vec<AttributeValue>,
        items_max: u16,
    ) -> Result<Vec<String>, ClientError> {
        let request = LocateRequest {
            maximum_items: Some(i32::from(items_max)),
            attributes: attributes.into_iter().map(Attribute::from).collect(),
            ..LocateRequest::default()
        };
        Ok(answer_of!(self, Locate, request).unique_identifiers)
    }

    /// Revokes an object. For a compromise, the compromise date is now.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn revoke(&self, id: &str, code: RevocationReasonCode, message: &str) -> Result<(), ClientError> {
        let compromised =
            matches!(code, RevocationReasonCode::KeyCompromise | RevocationReasonCode::CaCompromise);
        let request = RevokeRequest {
            unique_identifier: Some(id.to_owned()),
            revocation_reason: RevocationReason {
                code,
                message: (!message.is_empty()).then(|| message.to_owned()),
            },
            compromise_occurrence_date: compromised.then(DateTime::now),
        };
        answer_of!(self, Revoke, request);
        Ok(())
    }

    /// Destroys an object.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn destroy(&self, id: &str) -> Result<(), ClientError> {
        answer_of!(self, Destroy, object(id));
        Ok(())
    }
}
