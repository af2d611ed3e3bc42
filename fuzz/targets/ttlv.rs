#![no_main]
//! Any bytes as TTLV: refused, or read and written back as they came, since everything has one
//! encoding.

use strongroom_kmip::ttlv::{Item, Limits, Tag};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    for message in [Tag::REQUEST_MESSAGE, Tag::RESPONSE_MESSAGE, Tag::KEY_VALUE] {
        if let Ok(item) = Item::parse(input, message, &Limits::default()) {
            assert_eq!(item.to_bytes().as_slice(), input);
        }
    }
});
