//! Requests.

use zeroize::Zeroizing;

use super::RequestPayload;
use crate::codec::{Codec, DecodeError, Fields, Member, Rules, UnknownFields, structure};
use crate::protocol::{
    AttestationType, Authentication, BatchErrorContinuationOption, MessageExtension, Operation,
    ProtocolVersion,
};
use crate::ttlv::{ByteString, DateTime, Field, Limits, Structure, Tag, Writer, write_exactly};

structure! {
    /// The header of a request (section 7.2). The batch count is that of [`RequestMessage::items`].
    pub struct RequestHeader {
        /// The version of the message, and of its response.
        protocol_version: ProtocolVersion = PROTOCOL_VERSION,
        /// The longest response that the client accepts, in bytes.
        maximum_response_size: Option<i32> = MAXIMUM_RESPONSE_SIZE,
        /// For the client's logs.
        client_correlation_value: Option<String> = CLIENT_CORRELATION_VALUE since V1_4,
        /// For the server's logs.
        server_correlation_value: Option<String> = SERVER_CORRELATION_VALUE since V1_4,
        /// Whether the client can poll for the answer.
        asynchronous_indicator: Option<bool> = ASYNCHRONOUS_INDICATOR,
        /// Whether the client can attest its state.
        attestation_capable_indicator: Option<bool> = ATTESTATION_CAPABLE_INDICATOR since V1_2,
        /// The supported kinds of attestation.
        attestation_types: Vec<AttestationType> = ATTESTATION_TYPE since V1_2,
        /// Credentials in addition to the certificate.
        authentication: Option<Authentication> = AUTHENTICATION,
        /// The treatment of the batch after an error; by default it stops.
        batch_error_continuation_option: Option<BatchErrorContinuationOption> = BATCH_ERROR_CONTINUATION_OPTION,
        /// Whether the items must be processed in order.
        batch_order_option: Option<bool> = BATCH_ORDER_OPTION,
        /// When it was sent.
        time_stamp: Option<DateTime> = TIME_STAMP,
    }
}

impl RequestHeader {
    /// A header with nothing but the version.
    pub fn new(protocol_version: ProtocolVersion) -> Self {
        Self {
            protocol_version,
            maximum_response_size: None,
            client_correlation_value: None,
            server_correlation_value: None,
            asynchronous_indicator: None,
            attestation_capable_indicator: None,
            attestation_types: Vec::new(),
            authentication: None,
            batch_error_continuation_option: None,
            batch_order_option: None,
            time_stamp: None,
        }
    }
}

/// One item of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestItem {
    /// The client's name for this item. Required if there are several; the service checks that.
    pub unique_batch_item_id: Option<ByteString>,
    /// The operation and its parameters.
    pub payload: RequestPayload,
    /// A vendor's extension.
    pub message_extension: Option<MessageExtension>,
}

impl RequestItem {
    /// The requested operation.
    pub fn operation(&self) -> Operation {
        self.payload.operation()
    }
}

impl From<RequestPayload> for RequestItem {
    fn from(payload: RequestPayload) -> Self {
        Self { unique_batch_item_id: None, payload, message_extension: None }
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestMessage {
    /// The header.
    pub header: RequestHeader,
    /// The requested operations.
    pub items: Vec<RequestItem>,
}

/// A request that cannot be read as a whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no request of KMIP: {error}")]
pub struct MalformedRequest {
    /// The version of the refusal: the request's, or the nearest supported one.
    pub version: ProtocolVersion,
    /// What is wrong.
    #[source]
    pub error: DecodeError,
}

impl RequestMessage {
    /// Reads a request.
    ///
    /// # Errors
    /// [`MalformedRequest`] if it can only be refused as a whole.
    pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Self, MalformedRequest> {
        let mut version = ProtocolVersion::V1_0;
        Self::decode_in(bytes, limits, &mut version).map_err(|error| MalformedRequest { version, error })
    }

    /// Reads a request, and sets `version` as soon as it is known.
    fn decode_in(bytes: &[u8], limits: &Limits, version: &mut ProtocolVersion) -> Result<Self, DecodeError> {
        let message = Structure::parse(bytes, Tag::REQUEST_MESSAGE, limits)?;
        let (mut fields, header) = open(message, Tag::REQUEST_HEADER, UnknownFields::Refuse, version)?;
        let (header, batch_count) = split_batch_count(header, RequestHeader::take_from)?;
        let items: Vec<RequestItem> = Member::take(Tag::BATCH_ITEM, &mut fields)?;
        fields.finish()?;
        check_batch_count(batch_count, items.len())?;
        Ok(Self { header, items })
    }

    /// The encoded request, in the version of its header.
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        let version = self.header.protocol_version;
        write_exactly(|writer| {
            writer.structure(Tag::REQUEST_MESSAGE, |writer| {
                writer.structure(Tag::REQUEST_HEADER, |writer| {
                    self.header.put_into(version, writer);
                    writer.integer(Tag::BATCH_COUNT, batch_count(self.items.len()));
                });
                self.items.put(Tag::BATCH_ITEM, version, writer);
            });
        })
    }
}

/// Opens a message: its fields and those of its header, both by the rules of the header's version.
/// Sets `answer_in` to the version to answer in, even on failure.
pub(super) fn open<'a>(
    message: Structure<'a>,
    header: Tag,
    unknown_fields: UnknownFields,
    answer_in: &mut ProtocolVersion,
) -> Result<(Fields<'a>, Fields<'a>), DecodeError> {
    let any = Rules { version: ProtocolVersion::V1_4, unknown_fields: UnknownFields::Skip };
    let mut fields = Fields::new(message, any);
    let header_field = fields.take_one(header)?.ok_or_else(|| fields.missing(header))?;
    let version: ProtocolVersion = Member::take(Tag::PROTOCOL_VERSION, &mut Fields::of(header_field, any)?)?;
    if !version.is_spoken() {
        *answer_in =
            if version > ProtocolVersion::V1_4 { ProtocolVersion::V1_4 } else { ProtocolVersion::V1_0 };
        return Err(DecodeError::Version(version));
    }
    *answer_in = version;
    let rules = Rules { version, unknown_fields };
    let mut fields = Fields::new(message, rules);
    // It was read above; this only removes it from the fields.
    fields.take_one(header)?;
    Ok((fields, Fields::of(header_field, rules)?))
}

/// Takes a header and the batch count that stands among its fields.
pub(super) fn split_batch_count<H>(
    mut fields: Fields<'_>,
    take: impl FnOnce(&mut Fields<'_>) -> Result<H, DecodeError>,
) -> Result<(H, i32), DecodeError> {
    let header = take(&mut fields)?;
    let batch_count = Member::take(Tag::BATCH_COUNT, &mut fields)?;
    fields.finish()?;
    Ok((header, batch_count))
}

pub(super) fn check_batch_count(announced: i32, found: usize) -> Result<(), DecodeError> {
    if usize::try_from(announced) == Ok(found) {
        Ok(())
    } else {
        Err(DecodeError::BatchCount { announced, found })
    }
}

/// A batch count for the wire. A readable message has at most [`ITEMS_MAX`](crate::ttlv::ITEMS_MAX)
/// fields.
pub(super) fn batch_count(items: usize) -> i32 {
    i32::try_from(items).unwrap_or(i32::MAX)
}

impl Codec for RequestItem {
    fn decode(field: Field<'_>, rules: Rules) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(field, rules)?;
        let operation = Member::take(Tag::OPERATION, &mut fields)?;
        let item = Self {
            unique_batch_item_id: Member::take(Tag::UNIQUE_BATCH_ITEM_ID, &mut fields)?,
            payload: RequestPayload::decode(operation, fields.take_one(Tag::REQUEST_PAYLOAD)?, rules)?,
            message_extension: Member::take(Tag::MESSAGE_EXTENSION, &mut fields)?,
        };
        fields.finish()?;
        Ok(item)
    }

    fn encode(&self, tag: Tag, version: ProtocolVersion, writer: &mut Writer) {
        writer.structure(tag, |writer| {
            self.operation().encode(Tag::OPERATION, version, writer);
            self.unique_batch_item_id.put(Tag::UNIQUE_BATCH_ITEM_ID, version, writer);
            self.payload.encode(version, writer);
            self.message_extension.put(Tag::MESSAGE_EXTENSION, version, writer);
        });
    }
}
