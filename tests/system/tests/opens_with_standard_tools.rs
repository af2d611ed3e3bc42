//! A user without Strongroom reads a volume with OpenSSL and Argon2's reference implementation,
//! following `docs/ON_DISK.md`.

use std::fs::File;
use std::os::unix::fs::FileExt;

use strongroom_system_tests::{CommandLine, Scratch};

/// Not a multiple of a block: the last block is sealed with the bytes beyond the volume's end.
const DISK_BYTES: u64 = (6 << 20) + 1536;

fn make_disk(strongroom: &CommandLine<'_>) {
    let disk = File::create(strongroom.path("disk.raw")).expect("the disk can be made");
    disk.set_len(DISK_BYTES).unwrap();
    let text: Vec<u8> =
        (0..2_000_000_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    disk.write_all_at(&text, 700).unwrap();
    disk.write_all_at(b"the end", DISK_BYTES - 7).unwrap();
}

const READER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/read-layer.py");

#[test]
fn a_volume_under_a_key_file() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    strongroom.write_key_file("vm1.key", &[0x3C; 32]);
    make_disk(&strongroom);
    strongroom.json(&["volume", "import", "disk.raw", "ds/vm1", "--key-file", "vm1.key"]);
    let read = format!("'{READER}' ds/vm1 --key-file vm1.key > plain.raw");
    strongroom.run_shell(&read).success();
    strongroom.peer("cmp", &["disk.raw", "plain.raw"]);

    strongroom.write_key_file("vm1.key", &[0x3D; 32]);
    let refused = strongroom.run_shell(&read).failure();
    assert!(refused.contains("this is not its key"), "{refused}");
}

#[test]
fn a_volume_under_a_passphrase() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    std::fs::write(strongroom.path("passphrase"), "correct horse battery staple\n").unwrap();
    make_disk(&strongroom);
    strongroom.run_with_passphrase("passphrase", &["volume", "import", "disk.raw", "ds/vm1"]).success();
    let read = format!("'{READER}' ds/vm1 --passphrase-fd 3 3<passphrase > plain.raw");
    strongroom.run_shell(&read).success();
    strongroom.peer("cmp", &["disk.raw", "plain.raw"]);
}

/// The tags of blocks have a second reader too, which notices changed and erased blocks.
#[test]
fn a_volume_with_tags() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    strongroom.write_key_file("vm1.key", &[0x3C; 32]);
    make_disk(&strongroom);
    strongroom.json(&["volume", "import", "disk.raw", "ds/vm1", "--key-file", "vm1.key", "--integrity"]);
    let read = format!("'{READER}' ds/vm1 --key-file vm1.key > plain.raw");
    strongroom.run_shell(&read).success();
    strongroom.peer("cmp", &["disk.raw", "plain.raw"]);

    let open = |prefix: &str| {
        let names = std::fs::read_dir(strongroom.path("ds/vm1")).unwrap().map(|entry| entry.unwrap());
        let is_it = |entry: &std::fs::DirEntry| entry.file_name().to_str().unwrap().starts_with(prefix);
        File::options().read(true).write(true).open(names.into_iter().find(is_it).unwrap().path()).unwrap()
    };
    let (layer, tags) = (open("layer-"), open("tags2-"));
    // The bytes that are written, with file and offset; each damage is undone before the next.
    type Written<'file> = (&'file File, u64, Vec<u8>);
    let damages: [(&str, &[Written<'_>], u64); 4] = [
        ("a changed block", &[(&layer, 5 * 4096 + 77, vec![0x5A])], 5),
        (
            "a block and its tag erased",
            &[(&layer, 5 * 4096, vec![0; 4096]), (&tags, (16 << 20) + 5 * 16, vec![0; 16])],
            5,
        ),
        ("another tag of nothing", &[(&tags, (16 << 20) + 500 * 16, vec![7; 16])], 500),
        ("the record of what is there erased", &[(&tags, 1 << 20, vec![0; 512])], 512),
    ];
    for (what, changes, block) in damages {
        let mut former = Vec::new();
        for (file, at, content) in changes {
            let mut before = vec![0; content.len()];
            file.read_exact_at(&mut before, *at).unwrap();
            file.write_all_at(content, *at).unwrap();
            former.push((file, at, before));
        }
        let refused = strongroom.run_shell(&read).failure();
        assert!(refused.contains(&format!("block {block} is damaged")), "{what}: {refused}");
        for (file, at, before) in former {
            file.write_all_at(&before, *at).unwrap();
        }
    }
    strongroom.run_shell(&read).success();
}
