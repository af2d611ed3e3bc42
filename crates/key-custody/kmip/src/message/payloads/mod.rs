//! The payload of every operation, both ways (KMIP 1.4, section 4).

mod attributes;
mod cryptography;
mod lifecycle;
mod objects;
mod server;

pub use attributes::*;
pub use cryptography::*;
pub use lifecycle::*;
pub use objects::*;
pub use server::*;

use crate::codec::{Codec, DecodeError, Problem, RawStructure, Rules, structure};
use crate::protocol::{Operation, ProtocolVersion};
use crate::ttlv::{Field, Tag, Writer};

structure! {
    /// The request of an operation whose only parameter is an object.
    #[derive(Default)]
    pub struct UniqueIdentifierRequest {
        /// The object; by default the last one that the batch used (the ID placeholder).
        unique_identifier: Option<String> = UNIQUE_IDENTIFIER,
    }
}

structure! {
    /// The answer of an operation that returns only the object's identifier.
    pub struct UniqueIdentifierResponse {
        /// The object's identifier.
        unique_identifier: String = UNIQUE_IDENTIFIER,
    }
}

/// Makes the enumeration of all payloads of one direction.
macro_rules! payloads {
    (
        $(#[$attribute:meta])*
        pub enum $name:ident: $tag:ident {
            $($operation:ident($payload:ty),)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant, reason = "a message has few payloads, and each is read once")]
        pub enum $name {
            $(
                #[doc = concat!("[`Operation::", stringify!($operation), "`]")]
                $operation($payload),
            )*
            /// An operation that has no payload type here.
            Unknown {
                /// Which operation.
                operation: Operation,
                /// Its payload as it came.
                content: RawStructure,
            },
            /// A payload that cannot be decoded as one of its operation.
            Undecodable {
                /// Which operation.
                operation: Operation,
                /// What is wrong.
                error: DecodeError,
                /// The payload as it came.
                content: RawStructure,
            },
        }

        impl $name {
            /// The operations that have a payload type here, in the order of their numbers.
            pub const OPERATIONS: &'static [Operation] = &[$(Operation::$operation,)*];

            /// The payload's operation.
            pub fn operation(&self) -> Operation {
                match self {
                    $(Self::$operation(_) => Operation::$operation,)*
                    Self::Unknown { operation, .. } | Self::Undecodable { operation, .. } => *operation,
                }
            }

            /// Reads the payload of an operation.
            ///
            /// # Errors
            /// [`DecodeError`] only if the field is not a structure.
            pub(super) fn decode(
                operation: Operation,
                field: Option<Field<'_>>,
                rules: Rules,
            ) -> Result<Self, DecodeError> {
                let Some(field) = field else {
                    let error = DecodeError::Field { within: Tag::BATCH_ITEM, problem: Problem::Missing(Tag::$tag) };
                    return Ok(Self::Undecodable { operation, error, content: RawStructure::default() });
                };
                let content = RawStructure::decode(field, rules)?;
                let decoded = match operation {
                    $(Operation::$operation => Codec::decode(field, rules).map(Self::$operation),)*
                    _ => return Ok(Self::Unknown { operation, content }),
                };
                Ok(decoded.unwrap_or_else(|error| Self::Undecodable { operation, error, content }))
            }

            pub(super) fn encode(&self, version: ProtocolVersion, writer: &mut Writer) {
                match self {
                    $(Self::$operation(payload) => payload.encode(Tag::$tag, version, writer),)*
                    Self::Unknown { content, .. } | Self::Undecodable { content, .. } => {
                        content.encode(Tag::$tag, version, writer);
                    }
                }
            }
        }
    };
}

payloads! {
    /// The payload of a request.
    pub enum RequestPayload: REQUEST_PAYLOAD {
        Create(CreateRequest),
        Register(RegisterRequest),
        ReKey(ReKeyRequest),
        Locate(LocateRequest),
        Check(CheckRequest),
        Get(GetRequest),
        GetAttributes(GetAttributesRequest),
        GetAttributeList(UniqueIdentifierRequest),
        AddAttribute(AddAttributeRequest),
        ModifyAttribute(ModifyAttributeRequest),
        DeleteAttribute(DeleteAttributeRequest),
        ObtainLease(UniqueIdentifierRequest),
        GetUsageAllocation(GetUsageAllocationRequest),
        Activate(UniqueIdentifierRequest),
        Revoke(RevokeRequest),
        Destroy(UniqueIdentifierRequest),
        Archive(UniqueIdentifierRequest),
        Recover(UniqueIdentifierRequest),
        Query(QueryRequest),
        Cancel(CancelRequest),
        Poll(PollRequest),
        DiscoverVersions(DiscoverVersionsRequest),
        Encrypt(EncryptRequest),
        Decrypt(DecryptRequest),
        Mac(MacRequest),
        MacVerify(MacVerifyRequest),
        RngRetrieve(RngRetrieveRequest),
        RngSeed(RngSeedRequest),
        Hash(HashRequest),
    }
}

payloads! {
    /// The payload of a response.
    pub enum ResponsePayload: RESPONSE_PAYLOAD {
        Create(CreateResponse),
        Register(RegisterResponse),
        ReKey(ReKeyResponse),
        Locate(LocateResponse),
        Check(CheckResponse),
        Get(GetResponse),
        GetAttributes(GetAttributesResponse),
        GetAttributeList(GetAttributeListResponse),
        AddAttribute(AttributeResponse),
        ModifyAttribute(AttributeResponse),
        DeleteAttribute(AttributeResponse),
        ObtainLease(ObtainLeaseResponse),
        GetUsageAllocation(UniqueIdentifierResponse),
        Activate(UniqueIdentifierResponse),
        Revoke(UniqueIdentifierResponse),
        Destroy(UniqueIdentifierResponse),
        Archive(UniqueIdentifierResponse),
        Recover(UniqueIdentifierResponse),
        Query(QueryResponse),
        Cancel(CancelResponse),
        DiscoverVersions(DiscoverVersionsResponse),
        Encrypt(EncryptResponse),
        Decrypt(DecryptResponse),
        Mac(MacResponse),
        MacVerify(MacVerifyResponse),
        RngRetrieve(RngRetrieveResponse),
        RngSeed(RngSeedResponse),
        Hash(HashResponse),
    }
}

impl Operation {
    /// The first version that has the operation.
    pub fn since(self) -> ProtocolVersion {
        match self {
            Self::ReKeyKeyPair | Self::DiscoverVersions => ProtocolVersion::V1_1,
            Self::Encrypt
            | Self::Decrypt
            | Self::Sign
            | Self::SignatureVerify
            | Self::Mac
            | Self::MacVerify
            | Self::RngRetrieve
            | Self::RngSeed
            | Self::Hash
            | Self::CreateSplitKey
            | Self::JoinSplitKey => ProtocolVersion::V1_2,
            Self::Import | Self::Export => ProtocolVersion::V1_4,
            _ => ProtocolVersion::V1_0,
        }
    }
}
