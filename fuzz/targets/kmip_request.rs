#![no_main]
//! Any bytes as a request: refused with an answer that a client can read, or understood the same
//! when written again.

use strongroom_kmip::message::{RequestMessage, RequestPayload, ResponseMessage};
use strongroom_kmip::protocol::{ProtocolVersion, ResultReason};
use strongroom_kmip::ttlv::Limits;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let limits = Limits::default();
    match RequestMessage::decode(input, &limits) {
        // An item that cannot be understood is refused alone, and is not kept to be written again.
        Ok(request)
            if request
                .items
                .iter()
                .any(|item| matches!(item.payload, RequestPayload::Undecodable { .. })) => {}
        Ok(mut request) => {
            // What is written keeps to the version of the header: fields of later ones, which are
            // read, are left out.
            let written =
                RequestMessage::decode(&request.encode(), &limits).expect("what is written can be read");
            assert_eq!(RequestMessage::decode(&written.encode(), &limits), Ok(written));
            // The newest version has them all.
            request.header.protocol_version = ProtocolVersion::V1_4;
            assert_eq!(RequestMessage::decode(&request.encode(), &limits), Ok(request));
        }
        Err(refused) => {
            let reason = ResultReason::from(&refused.error);
            let answer = ResponseMessage::failure(refused.version, reason, refused.to_string());
            assert_eq!(ResponseMessage::decode(&answer.encode(), &limits), Ok(answer));
        }
    }
});
