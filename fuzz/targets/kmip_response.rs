#![no_main]
//! Any bytes as a response: refused, or understood the same when written again.

use strongroom_kmip::message::ResponseMessage;
use strongroom_kmip::ttlv::Limits;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let limits = Limits::default();
    if let Ok(response) = ResponseMessage::decode(input, &limits) {
        assert_eq!(ResponseMessage::decode(&response.encode(), &limits), Ok(response));
    }
});
