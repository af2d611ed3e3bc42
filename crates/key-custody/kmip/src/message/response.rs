//! Responses.

use zeroize::Zeroizing;

use super::request::{batch_count, check_batch_count, open, split_batch_count};
use super::{RequestItem, ResponsePayload};
use crate::codec::{Codec, DecodeError, Fields, Member, Rules, UnknownFields, structure};
use crate::protocol::{
    AttestationType, MessageExtension, Nonce, Operation, ProtocolVersion, ResultReason, ResultStatus,
};
use crate::ttlv::{ByteString, DateTime, Field, Limits, Structure, Tag, Writer, write_exactly};

structure! {
    /// The header of a response (section 7.2). The batch count is that of
    /// [`ResponseMessage::items`].
    pub struct ResponseHeader {
        /// The message's version.
        protocol_version: ProtocolVersion = PROTOCOL_VERSION,
        /// When it was sent.
        time_stamp: DateTime = TIME_STAMP,
        /// A number for the client's attestation.
        nonce: Option<Nonce> = NONCE since V1_2,
        /// How the client must attest its state.
        attestation_types: Vec<AttestationType> = ATTESTATION_TYPE since V1_2,
        /// The request's, for the client's logs.
        client_correlation_value: Option<String> = CLIENT_CORRELATION_VALUE since V1_4,
        /// For the server's logs.
        server_correlation_value: Option<String> = SERVER_CORRELATION_VALUE since V1_4,
    }
}

impl ResponseHeader {
    /// A header with only the version and the current time.
    pub fn new(protocol_version: ProtocolVersion) -> Self {
        Self {
            protocol_version,
            time_stamp: DateTime::now(),
            nonce: None,
            attestation_types: Vec::new(),
            client_correlation_value: None,
            server_correlation_value: None,
        }
    }
}

/// The answer to one item of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseItem {
    /// The requested operation; absent if the request could not be read.
    pub operation: Option<Operation>,
    /// The client's name for the item.
    pub unique_batch_item_id: Option<ByteString>,
    /// The result.
    pub result_status: ResultStatus,
    /// Why it failed.
    pub result_reason: Option<ResultReason>,
    /// The reason in words.
    pub result_message: Option<String>,
    /// The value to poll with.
    pub asynchronous_correlation_value: Option<ByteString>,
    /// The operation's result.
    pub payload: Option<ResponsePayload>,
    /// A vendor's extension.
    pub message_extension: Option<MessageExtension>,
}

impl ResponseItem {
    /// The answer that `item` succeeded.
    pub fn success(item: &RequestItem, payload: ResponsePayload) -> Self {
        Self {
            operation: Some(item.operation()),
            unique_batch_item_id: item.unique_batch_item_id.clone(),
            result_status: ResultStatus::Success,
            result_reason: None,
            result_message: None,
            asynchronous_correlation_value: None,
            payload: Some(payload),
            message_extension: None,
        }
    }

    /// The answer that `item` failed.
    pub fn failure(item: &RequestItem, reason: ResultReason, message: impl Into<String>) -> Self {
        Self {
            operation: Some(item.operation()),
            unique_batch_item_id: item.unique_batch_item_id.clone(),
            ..Self::failure_of_message(reason, message)
        }
    }

    /// The answer that refuses a whole request.
    pub fn failure_of_message(reason: ResultReason, message: impl Into<String>) -> Self {
        Self {
            operation: None,
            unique_batch_item_id: None,
            result_status: ResultStatus::OperationFailed,
            result_reason: Some(reason),
            result_message: Some(message.into()),
            asynchronous_correlation_value: None,
            payload: None,
            message_extension: None,
        }
    }
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseMessage {
    /// The header.
    pub header: ResponseHeader,
    /// One answer for each item, in no particular order unless the request asked for one.
    pub items: Vec<ResponseItem>,
}

impl ResponseMessage {
    /// The answer to a request that was refused as a whole.
    pub fn failure(version: ProtocolVersion, reason: ResultReason, message: impl Into<String>) -> Self {
        Self {
            header: ResponseHeader::new(version),
            items: vec![ResponseItem::failure_of_message(reason, message)],
        }
    }

    /// Reads a response. Unknown fields are skipped, and a payload that cannot be decoded affects
    /// only its own item.
    ///
    /// # Errors
    /// [`DecodeError`] if no part of it can be used.
    pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Self, DecodeError> {
        let message = Structure::parse(bytes, Tag::RESPONSE_MESSAGE, limits)?;
        let mut version = ProtocolVersion::V1_0;
        let (mut fields, header) = open(message, Tag::RESPONSE_HEADER, UnknownFields::Skip, &mut version)?;
        let (header, batch_count) = split_batch_count(header, ResponseHeader::take_from)?;
        let items: Vec<ResponseItem> = Member::take(Tag::BATCH_ITEM, &mut fields)?;
        fields.finish()?;
        check_batch_count(batch_count, items.len())?;
        Ok(Self { header, items })
    }

    /// The encoded response, in the version of its header.
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        let version = self.header.protocol_version;
        write_exactly(|writer| {
            writer.structure(Tag::RESPONSE_MESSAGE, |writer| {
                writer.structure(Tag::RESPONSE_HEADER, |writer| {
                    self.header.put_into(version, writer);
                    writer.integer(Tag::BATCH_COUNT, batch_count(self.items.len()));
                });
                self.items.put(Tag::BATCH_ITEM, version, writer);
            });
        })
    }
}

impl Codec for ResponseItem {
    fn decode(field: Field<'_>, rules: Rules) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(field, rules)?;
        let operation: Option<Operation> = Member::take(Tag::OPERATION, &mut fields)?;
        // Without the operation the payload's type is unknown.
        let payload = match (operation, fields.take_one(Tag::RESPONSE_PAYLOAD)?) {
            (Some(operation), Some(payload)) => {
                Some(ResponsePayload::decode(operation, Some(payload), rules)?)
            }
            _ => None,
        };
        let item = Self {
            operation,
            unique_batch_item_id: Member::take(Tag::UNIQUE_BATCH_ITEM_ID, &mut fields)?,
            result_status: Member::take(Tag::RESULT_STATUS, &mut fields)?,
            result_reason: Member::take(Tag::RESULT_REASON, &mut fields)?,
            result_message: Member::take(Tag::RESULT_MESSAGE, &mut fields)?,
            asynchronous_correlation_value: Member::take(Tag::ASYNCHRONOUS_CORRELATION_VALUE, &mut fields)?,
            payload,
            message_extension: Member::take(Tag::MESSAGE_EXTENSION, &mut fields)?,
        };
        fields.finish()?;
        Ok(item)
    }

    fn encode(&self, tag: Tag, version: ProtocolVersion, writer: &mut Writer) {
        writer.structure(tag, |writer| {
            self.operation.put(Tag::OPERATION, version, writer);
            self.unique_batch_item_id.put(Tag::UNIQUE_BATCH_ITEM_ID, version, writer);
            self.result_status.encode(Tag::RESULT_STATUS, version, writer);
            self.result_reason.put(Tag::RESULT_REASON, version, writer);
            self.result_message.put(Tag::RESULT_MESSAGE, version, writer);
            self.asynchronous_correlation_value.put(Tag::ASYNCHRONOUS_CORRELATION_VALUE, version, writer);
            if let Some(payload) = &self.payload {
                payload.encode(version, writer);
            }
            self.message_extension.put(Tag::MESSAGE_EXTENSION, version, writer);
        });
    }
}
