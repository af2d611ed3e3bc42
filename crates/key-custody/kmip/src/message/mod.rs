//! Messages: a header and a batch of items (KMIP 1.4, sections 6 to 8).
//!
//! What is wrong spoils as little as it can. A message that is no TTLV, or whose header or batch
//! items cannot be read, is refused as a whole. A payload that cannot be read spoils its own item:
//! it is kept as [`RequestPayload::Undecodable`] with the reason. An operation that is not known
//! here is kept as [`RequestPayload::Unknown`].

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
