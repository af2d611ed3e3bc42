//! A volume with tags of the former format: readers use it as it is, and the first writer converts
//! its tags.

use std::path::Path;
use std::sync::Arc;

use rand::SeedableRng;
use rand::rngs::StdRng;
use rustix::fs::OFlags;
use strongroom_datastore::file::storage::Storage;
use strongroom_datastore::file::tags::{Layout, TagsFacts};
use strongroom_datastore::file::{Access, Integrity, Provisioning};
use strongroom_io::{IoError, Request};
use strongroom_keys::{DescriptorKey, Kek};
use strongroom_sim::SimFs;
use strongroom_types::BLOCK_BYTES;

use super::campaign;
use super::volume::*;

const SIZE: u64 = 3 << 20;

const NONE: [u64; 0] = [];

/// A volume written by a program of format version 3: blocks 0 to 15 and 300 are written, and 3 is
/// discarded.
fn former(kek: &Kek, provisioning: Provisioning) -> SimFs {
    let fs = SimFs::new(1);
    create_volume(&fs, kek, SIZE, provisioning, Some(Integrity::HmacSha256Absence));
    let directory = Storage::open_directory(&fs, Path::new(PATH)).unwrap();
    let mut volume = open_volume(&fs, kek, Access::ReadWrite).unwrap();
    let (_, facts) = volume.tags.take().unwrap();
    let former_name = format!("tags-{}", facts.layer);
    let file = directory.open(&former_name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL).unwrap();
    file.set_length(Layout::FORMER.file_bytes(SIZE)).unwrap();
    volume.tags = Some((file.into(), TagsFacts { absence: None, ..facts }));
    let disk = tags_over(Arc::clone(&volume.disk) as _, &mut volume);
    let mut queue = Queue::on(&fs, &disk);
    queue.write(1, blocks(0, 16));
    queue.write(1, blocks(300, 1));
    let extent = blocks(3, 1);
    queue.run(Request::WriteZeroes { extent, may_unmap: true, durable: false }).result.unwrap();
    queue.flush();
    drop(queue);
    drop((disk, volume));
    directory.remove(&format!("tags2-{}", facts.layer)).unwrap();

    let file = file_of(&fs, "descriptor");
    let mut bytes = vec![0; file.length().unwrap() as usize];
    file.read_at(0, &mut bytes).unwrap();
    let body = String::from_utf8(bytes[16..bytes.len() - 32].to_vec()).unwrap();
    let body = body.replace("hmac-sha256-128-absence", "hmac-sha256-128");
    let length = (body.len() as u32).to_le_bytes();
    let mut signed = [b"STRGROOM".as_slice(), &3_u32.to_le_bytes(), &length, body.as_bytes()].concat();
    let tag = DescriptorKey::derive(kek, facts.volume).unwrap().tag(&signed).unwrap();
    signed.extend(tag);
    file.set_length(signed.len() as u64).unwrap();
    file.write_at(0, &signed).unwrap();
    file.sync().unwrap();
    directory.sync().unwrap();
    fs
}

/// The failing blocks; all others show the written data.
fn failing(fs: &SimFs, kek: &Kek, access: Access) -> Vec<u64> {
    let mut volume = open_volume(fs, kek, access).unwrap();
    let disk = tags_over(Arc::clone(&volume.disk) as _, &mut volume);
    let mut queue = Queue::on(fs, &disk);
    let wrong = (0..SIZE / BLOCK_BYTES).filter(|block| {
        let is_written = (0..16).contains(block) && *block != 3 || *block == 300;
        match queue.read(blocks(*block, 1)) {
            Ok(_) if is_written => assert!(queue.shows(1, *block).unwrap(), "block {block}"),
            Ok(content) => assert_eq!(content, [0; BLOCK], "block {block}"),
            Err(error) => {
                assert_eq!(error, IoError::Integrity { block: *block });
                return true;
            }
        }
        false
    });
    let wrong = wrong.collect();
    assert_eq!(disk.counts().adopted, 0);
    wrong
}

fn names(fs: &SimFs) -> Vec<String> {
    let names = Storage::open_directory(fs, Path::new(PATH)).unwrap().names().unwrap();
    names.into_iter().filter(|name| name.starts_with("tags")).collect()
}

/// The new format detects erasures that the former one does not.
#[test]
fn the_first_writer_gives_it_tags_that_notice_what_is_erased() {
    let kek = kek();
    for provisioning in [Provisioning::Thin, Provisioning::Thick] {
        let erase = |fs: &SimFs, prefix: &str, tags: u64| {
            file_of(fs, "layer-").write_at(4 * BLOCK_BYTES, &[0; BLOCK]).unwrap();
            file_of(fs, prefix).write_at(tags + 16 * 4, &[0; 16]).unwrap();
        };
        let fs = former(&kek, provisioning);
        assert_eq!(failing(&fs, &kek, Access::ReadOnly), NONE);
        assert!(names(&fs)[0].starts_with("tags-"), "a reader leaves it as it is");
        assert_eq!(failing(&fs, &kek, Access::ReadWrite), NONE);
        assert!(names(&fs).len() == 1 && names(&fs)[0].starts_with("tags2-"), "{:?}", names(&fs));
        assert_eq!(failing(&fs, &kek, Access::ReadOnly), NONE);
        if provisioning == Provisioning::Thick {
            erase(&fs, "tags2-", TAGS);
            assert_eq!(failing(&fs, &kek, Access::ReadOnly), [4]);
        }
    }
}

/// Without room for new tags the volume keeps the former ones.
#[test]
fn without_room_it_keeps_its_tags() {
    let (kek, provisioning) = (kek(), Provisioning::Thick);
    let fs = former(&kek, provisioning);
    let directory = Storage::open_directory(&fs, Path::new(PATH)).unwrap();
    let named = directory.names().unwrap();
    let taken: u64 = named.iter().map(|name| directory.allocated_bytes(name).unwrap()).sum();
    fs.set_capacity(Some(taken));
    assert_eq!(failing(&fs, &kek, Access::ReadWrite), NONE);
    assert!(names(&fs).len() == 1 && names(&fs)[0].starts_with("tags-"), "{:?}", names(&fs));
    fs.set_capacity(None);
    assert_eq!(failing(&fs, &kek, Access::ReadWrite), NONE);
    assert!(names(&fs)[0].starts_with("tags2-"));
}

/// Power is cut at each moment of the conversion: the volume has the complete former or new tags.
#[test]
fn no_power_cut_leaves_it_without_tags() {
    let kek = kek();
    let fs = former(&kek, Provisioning::Thick);
    fs.record();
    drop(open_volume(&fs, &kek, Access::ReadWrite).unwrap());
    let last = fs.moments() - 1;
    let mut random = StdRng::seed_from_u64(campaign::first_seed());
    let mut was_former = 0;
    for moment in (0..=last).chain(campaign::moments(&mut random, 100, last)) {
        let cut = fs.cut_at(moment, rand::Rng::random(&mut random));
        was_former += usize::from(names(&cut).iter().any(|name| name.starts_with("tags-")));
        assert_eq!(failing(&cut, &kek, Access::ReadOnly), NONE, "moment {moment}, read only");
        assert_eq!(failing(&cut, &kek, Access::ReadWrite), NONE, "moment {moment}");
        assert_eq!(failing(&cut, &kek, Access::ReadWrite), NONE, "moment {moment}, again");
    }
    println!("{last} moments; the former file was still there after {was_former} of the cuts");
}
