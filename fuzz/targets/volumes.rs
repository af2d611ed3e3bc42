#![no_main]
//! Any bytes as what the other host of a move says: refused, or an answer within its limits; and
//! the same as its questions.

use std::ops::ControlFlow;

use strongroom_streams::{
    Asked, RestPart, VOLUME_DATA_BYTES_MAX, VolumeGiver, VolumeTaker, VolumesError,
};
use strongroom_types::LayerId;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((kind, input)) = input.split_first() else { return };
    let mut taker = VolumeTaker::new(input, Vec::new());
    let layer = LayerId::from_bytes([1; 16]);
    match kind % 6 {
        0 => {
            let given = taker.volume("disk0");
            assert!(!matches!(given, Ok(Some(given)) if given.descriptor.len() > input.len()));
        }
        1 => {
            let mut came = 0;
            let mut take = |_, _, data: &[u8]| {
                came += data.len();
                assert!(data.len() <= VOLUME_DATA_BYTES_MAX && came <= input.len());
                Ok::<_, VolumesError>(ControlFlow::Continue(()))
            };
            let _ = taker.layer(layer, Some(&[2; 32]), &mut take);
        }
        2 => assert!(!matches!(taker.file("vm.json"), Ok(Some(content)) if content.len() > input.len())),
        3 => drop(taker.end()),
        4 => {
            let mut came = 0;
            let mut take = |_, _, data: &[u8]| {
                came += data.len();
                assert!(came <= input.len());
                Ok::<_, VolumesError>(ControlFlow::Continue(()))
            };
            let _ = taker.rest();
            while let Ok(part) = taker.rest_part() {
                match part {
                    RestPart::Volume(name, given) => {
                        assert!(name.len() + given.descriptor.len() <= input.len());
                    }
                    RestPart::Layer(_) if taker.content(&mut take).is_err() => break,
                    RestPart::Layer(_) => {}
                    RestPart::End => break,
                }
            }
        }
        _ => {
            let mut giver = VolumeGiver::new(input, Vec::new());
            while let Ok(asked) = giver.next_asked() {
                assert!(!matches!(asked, Asked::Volume(name) | Asked::File(name) if name.len() > 255));
            }
        }
    }
});
