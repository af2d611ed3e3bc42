#![no_main]
//! Any bytes as a response: refused, or understood the same when written again.

use strongroom_kmip::message::{ResponseItem, ResponseMessage, ResponsePayload};
use strongroom_kmip::protocol::ProtocolVersion;
use strongroom_kmip::ttlv::Limits;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let limits = Limits::default();
    if let Ok(mut response) = ResponseMessage::decode(input, &limits) {
        // What is written keeps to the version of the header: fields of later ones, which are read,
        // are left out.
        let written =
            ResponseMessage::decode(&response.encode(), &limits).expect("what is written can be read");
        assert_eq!(ResponseMessage::decode(&written.encode(), &limits), Ok(written));
        // The newest version has them all. What an older one does not allow may mean something
        // there.
        let undecodable =
            |item: &ResponseItem| matches!(item.payload, Some(ResponsePayload::Undecodable { .. }));
        if !response.items.iter().any(undecodable) {
            response.header.protocol_version = ProtocolVersion::V1_4;
            assert_eq!(ResponseMessage::decode(&response.encode(), &limits), Ok(response));
        }
    }
});
