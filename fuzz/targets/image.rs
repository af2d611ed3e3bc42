#![no_main]
//! Any bytes from the other end of an image on its way: a client that answers, and a host that asks.

use std::io::{self, Read, Write};

use strongroom_streams::{IMAGE_DATA_BYTES_MAX, ImageGiver, ImageTaker};
use strongroom_types::Extent;

/// A connection of which the other end has said everything already.
struct Said<'a>(&'a [u8]);

impl Read for Said<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Said<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const SIZE_BYTES: u64 = 3 << 20;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Ok(mut client) = ImageTaker::begin(Said(input)) {
        let mut at = 0;
        while at < client.size_bytes() {
            let end = client.size_bytes().min(at + 512);
            let mut answer = vec![0xA5; (end - at) as usize];
            if client.ask(Extent::between(at, end)).and_then(|()| client.answer(&mut answer)).is_err() {
                break;
            }
            at = end;
        }
    }
    if let Ok(host) = ImageGiver::begin(Said(input), SIZE_BYTES) {
        let _ = host.answer(|offset, into| {
            let length = into.len();
            assert!((1..=IMAGE_DATA_BYTES_MAX).contains(&length) && offset + length as u64 <= SIZE_BYTES);
            Ok(())
        });
    }
});
