#![no_main]
//! Any bytes as the content of a disk on its way: refused, or data that lies in the disk, and no more of
//! it than the disk.

use std::time::Duration;

use strongroom_streams::{Frame, FrameReader, Pace};

const ROOM_BYTES: u64 = 1 << 20;
const PACE: Pace = Pace { least_bytes: 1, window: Duration::from_secs(3600) };

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Ok(mut frames) = FrameReader::begin(input, ROOM_BYTES, PACE) else { return };
    let (size_bytes, mut came) = (frames.size_bytes(), 0);
    assert!(size_bytes <= ROOM_BYTES);
    while let Ok(Frame::Data { extent, data }) = frames.next_frame() {
        came += data.len() as u64;
        assert!(extent.end() <= size_bytes && extent.length() == data.len() as u64 && came <= size_bytes);
    }
});
