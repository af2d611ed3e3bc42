//! A slice of these tests, on ext4, which runs with all other tests if root is available: in its
//! own mount and process namespaces, with which all mounts and processes disappear.

use std::path::Path;
use std::process::Command;

use strongroom_datastore::file::Provisioning;

use super::file_system::EXT4;
use super::full;
use super::knowledge::Sort;
use super::promises;
use super::trial::Trial;

const CUTS: usize = 100;
const PROGRAMS: [&str; 5] = ["qemu-storage-daemon", "mkfs.ext4", "e2fsck", "losetup", "unshare"];
/// Root's programs are not on every user's path.
const PATH_OF_ROOT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why the slice cannot run here.
fn hindrance() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("it mounts file systems, which needs root".to_owned());
    }
    if let Some(device) =
        ["/dev/fuse", "/dev/loop-control"].into_iter().find(|path| !Path::new(path).exists())
    {
        return Some(format!("there is no {device}"));
    }
    let is_there = |program: &&str| PATH_OF_ROOT.split(':').any(|at| Path::new(at).join(program).exists());
    PROGRAMS.into_iter().find(|program| !is_there(program)).map(|program| format!("{program} is missing"))
}

#[test]
fn power_cuts_on_ext4_leave_what_was_acknowledged() {
    if let Some(why) = hindrance() {
        println!("skipped: {why}");
        return;
    }
    let this = std::env::current_exe().unwrap();
    let namespaces =
        ["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"];
    // In memory, and removed with the namespace.
    let in_memory = r#"mount -t tmpfs -o size=1G,mode=0700 power-cuts /mnt && exec "$@""#;
    let mut inside = Command::new("unshare");
    inside.args(namespaces).args(["sh", "-c", in_memory, "sh"]).arg(this);
    inside.args(["--exact", "slice::inside", "--ignored", "--nocapture"]);
    inside.env("TMPDIR", "/mnt").env("PATH", PATH_OF_ROOT);
    let output = inside.output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "the other test runs it in namespaces of its own"]
fn inside() {
    let wrong = |what: String| panic!("{what}");
    for (provisioning, integrity) in [(Provisioning::Thin, false), (Provisioning::Thick, true)] {
        let sort = Sort { encrypted: true, provisioning, integrity };
        promises::are_kept(&EXT4, sort).unwrap_or_else(wrong);
        full::acknowledgements_are_kept(sort);
    }
    let mut trial = Trial::new(&EXT4);
    let mut seed = 1;
    while trial.count.cuts + trial.count.second_cuts < CUTS {
        trial.live(seed, None).unwrap_or_else(|what| panic!("{what}"));
        seed += 1;
    }
    println!("{:?}", trial.count);
}
