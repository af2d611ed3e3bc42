//! What the crypt filter puts below, and what it makes of what it finds there.

use std::sync::Arc;

use crate::support::{self, key};
use strongroom_crypto::xts::Xts;
use strongroom_datastore::memory::MemoryDisk;
use strongroom_filters::cleartext::CleartextDisk;
use strongroom_filters::crypt::{CryptDisk, EpochKeys};
use strongroom_filters::mixed::{MixedDisk, Writes};
use strongroom_io::conformance::{Driver, Setup, TestPayload, Violation};
use strongroom_io::{Disk, IoError, Payload, Plain, Request, Sealed};
use strongroom_types::{Extent, KeyEpoch, VolumeSize};

const SIZE_BYTES: u64 = 1 << 20;
const BLOCK: usize = 4096;

fn second() -> KeyEpoch {
    KeyEpoch::new(2).unwrap()
}

fn memory(epoch: KeyEpoch) -> Arc<MemoryDisk> {
    Arc::new(MemoryDisk::new(VolumeSize::new(SIZE_BYTES).unwrap(), epoch))
}

fn keys(epoch: KeyEpoch, key: &Arc<Xts>) -> Arc<EpochKeys> {
    Arc::new(EpochKeys::new(epoch, Arc::clone(key)).unwrap())
}

fn driver<P: TestPayload>(disk: &dyn Disk<P>) -> Driver<P> {
    Driver::open(disk, &Setup::default(), 4, 4 << 20, 0).unwrap()
}

/// What lies below, past the suite's own check of seals: the raw bytes.
fn below(disk: &dyn Disk<Sealed>, extent: Extent) -> Vec<u8> {
    below_sealed(disk, KeyEpoch::FIRST, extent)
}

/// The same of blocks with another seal.
fn below_sealed(disk: &dyn Disk<Sealed>, epoch: KeyEpoch, extent: Extent) -> Vec<u8> {
    let setup = Setup::default().epoch(epoch);
    let mut driver = Driver::<Sealed>::open(disk, &setup, 4, 4 << 20, 0).unwrap();
    let into = driver.memory.blank::<Sealed>(extent.length() as usize, &mut driver.random).unwrap();
    Sealed::content(&driver.succeed(Request::Read { extent, into }).unwrap().unwrap())
}

#[test]
fn a_block_is_a_unit_with_its_own_number() {
    let (datastore, key) = (memory(KeyEpoch::FIRST), key());
    let disk = CryptDisk::new(Arc::clone(&datastore) as _, keys(KeyEpoch::FIRST, &key));
    let plain: Vec<u8> = (0..3 * BLOCK).map(|at| (at % 255) as u8).collect();
    driver(&disk).write(5 * BLOCK as u64, &plain).unwrap();
    let mut expected = vec![0; plain.len()];
    key.session().unwrap().encrypt(5, &plain, &mut expected).unwrap();
    assert!(below(&*datastore, Extent::between(5 * 4096, 8 * 4096)) == expected);
    assert!(below(&*datastore, Extent::between(0, 5 * 4096)).iter().all(|byte| *byte == 0));
}

#[test]
fn written_zeroes_are_text_like_any_other() {
    let datastore = memory(KeyEpoch::FIRST);
    let disk = support::crypt(Arc::clone(&datastore) as _);
    let mut driver = driver(&disk);
    driver.write(0, &[0; BLOCK]).unwrap();
    let extent = Extent::between(0, BLOCK as u64);
    assert!(below(&*datastore, extent).iter().any(|byte| *byte != 0));
    assert!(driver.read(extent).unwrap() == [0; BLOCK]);
    driver.succeed(Request::WriteZeroes { extent, may_unmap: true, durable: false }).unwrap();
    assert!(below(&*datastore, extent).iter().all(|byte| *byte == 0));
    assert!(driver.read(extent).unwrap() == [0; BLOCK]);
}

#[test]
fn new_writes_are_sealed_under_the_new_epoch_on_open_channels() {
    let (first_key, second_key) = (key(), key());
    let keys = keys(KeyEpoch::FIRST, &first_key);
    // This datastore takes blocks of the second epoch only, so it shows which one a write bears.
    let disk = CryptDisk::new(memory(second()), Arc::clone(&keys));
    let mut driver = driver(&disk);
    let refused = driver.write(0, &[7; BLOCK]).unwrap_err();
    let expected = Err(IoError::UnknownEpoch { block: 0, epoch: KeyEpoch::FIRST });
    assert!(matches!(refused, Violation::Result { result, .. } if result == expected), "{refused}");
    keys.insert(second(), second_key).unwrap();
    keys.set_write_epoch(second()).unwrap();
    driver.write(0, &[7; BLOCK]).unwrap();
    assert!(driver.read(Extent::between(0, BLOCK as u64)).unwrap() == [7; BLOCK]);
}

#[test]
fn a_block_of_an_unknown_epoch_is_not_guessed_at() {
    let (datastore, key) = (memory(second()), key());
    let writer = CryptDisk::new(Arc::clone(&datastore) as _, keys(second(), &key));
    driver(&writer).write(3 * BLOCK as u64, &[7; BLOCK]).unwrap();
    let reader = CryptDisk::new(datastore, keys(KeyEpoch::FIRST, &support::key()));
    let mut driver = driver(&reader);
    assert!(driver.read(Extent::between(0, 3 * BLOCK as u64)).unwrap() == [0; 3 * BLOCK]);
    let extent = Extent::between(0, 8 * BLOCK as u64);
    let into = driver.memory.blank::<Plain>(8 * BLOCK, &mut driver.random).unwrap();
    let done = driver.run(Request::Read { extent, into }).unwrap();
    assert_eq!(done.result, Err(IoError::UnknownEpoch { block: 3, epoch: second() }));
    assert_eq!(done.memory.map(|memory| Plain::len(&memory)), Some(8 * BLOCK));
}

#[test]
fn another_key_reads_noise() {
    let datastore = memory(KeyEpoch::FIRST);
    driver(&support::crypt(Arc::clone(&datastore) as _)).write(0, &[7; BLOCK]).unwrap();
    let found = driver(&support::crypt(datastore)).read(Extent::between(0, BLOCK as u64)).unwrap();
    assert!(found.iter().filter(|byte| **byte == 7).count() < BLOCK / 16);
}

#[test]
fn cleartext_is_what_its_name_says() {
    let datastore = memory(KeyEpoch::CLEAR);
    let disk = CleartextDisk::new(Arc::clone(&datastore) as _);
    driver(&disk).write(4096, &[7; BLOCK]).unwrap();
    assert!(below_sealed(&*datastore, KeyEpoch::CLEAR, Extent::between(4096, 8192)) == [7; BLOCK]);
}

#[test]
fn beside_sealed_layers_only_a_clear_seal_is_clear() {
    let key = key();
    let mixed = |datastore: &Arc<MemoryDisk>, writes| {
        MixedDisk::new(Arc::clone(datastore) as _, keys(KeyEpoch::FIRST, &key), writes)
    };
    let extent = Extent::between(4096, 8192);
    // What is written is of the one sort that was chosen: the memory takes no other.
    for (epoch, writes, other) in
        [(KeyEpoch::FIRST, Writes::Sealed, Writes::Clear), (KeyEpoch::CLEAR, Writes::Clear, Writes::Sealed)]
    {
        let datastore = memory(epoch);
        driver(&mixed(&datastore, other)).write(4096, &[7; BLOCK]).unwrap_err();
        driver(&mixed(&datastore, writes)).write(4096, &[7; BLOCK]).unwrap();
        assert_eq!(below_sealed(&*datastore, epoch, extent) == [7; BLOCK], writes == Writes::Clear);
        // Either reads both.
        for writes in [writes, other] {
            assert!(driver(&mixed(&datastore, writes)).read(extent).unwrap() == [7; BLOCK]);
        }
    }
    // A block of an epoch without a key is not taken for a clear one, nor a clear one without this
    // stage for one of a key.
    let (unknown, clear) = (memory(second()), memory(KeyEpoch::CLEAR));
    driver(&CryptDisk::new(Arc::clone(&unknown) as _, keys(second(), &key)))
        .write(4096, &[7; BLOCK])
        .unwrap();
    driver(&CleartextDisk::new(Arc::clone(&clear) as _)).write(4096, &[7; BLOCK]).unwrap();
    driver(&mixed(&unknown, Writes::Clear)).read(extent).unwrap_err();
    driver(&CryptDisk::new(clear, keys(KeyEpoch::FIRST, &key))).read(extent).unwrap_err();
}
