//! Messages: a header and a batch of items (KMIP 1.4, sections 6 to 8).
//!
//! A decoding error affects as little as possible. A message that is not TTLV, or whose header or
//! batch items cannot be decoded, is refused as a whole. A payload that cannot be decoded affects
//! only its own item: it is kept as [`RequestPayload::Undecodable`] with the error. An unknown
//! operation is kept as [`RequestPayload::Unknown`].

#[cfg(test)]
mod examples;
mod payloads;
mod request;
mod response;
#[cfg(test)]
mod tests;

pub use payloads::*;
pub use request::{MalformedRequest, RequestHeader, RequestItem, RequestMessage};
pub use response::{ResponseHeader, ResponseItem, ResponseMessage};
