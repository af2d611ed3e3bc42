#![no_main]
//! Any bytes as an archive of a VM, and as its description: refused, or files that lie in it and disks
//! that a VM can have.

use strongroom_ova::archive::find;
use strongroom_ova::envelope;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let read = |offset: u64, into: &mut [u8]| {
        into.copy_from_slice(&input[offset as usize..offset as usize + into.len()]);
        Ok(())
    };
    for member in find(input.len() as u64, read).unwrap_or_default() {
        assert!(member.offset + member.length <= input.len() as u64);
        assert!(!member.name.contains('/') && member.name != "..");
    }
    if let Ok(vm) = std::str::from_utf8(input).map_err(drop).and_then(|text| envelope::read(text).map_err(drop)) {
        assert!(vm.disks.len() <= 16);
    }
});
