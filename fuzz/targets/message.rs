#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| strongroom_frontend::vhost_user_blk::fuzzing::message(input));
