//! qemu-nbd in the program's place.

use std::path::Path;
use std::process::Command;

use crate::volume::{Protection, Volume};

pub(crate) fn create(volume: &Volume<'_>, size: &str) -> Command {
    let mut command = Command::new("qemu-img");
    command.args(["create", "-q"]);
    match volume.protection {
        Protection::Unencrypted => command.args(["-f", "raw"]),
        Protection::Encrypted => command
            .arg("--object")
            .arg(format!("secret,id=key,file={}", volume.key_file().display()))
            .args(["-f", "luks", "-o", "key-secret=key,iter-time=10"]),
    };
    command.arg(volume.path()).arg(size);
    command
}

pub(crate) fn expose(volume: &Volume<'_>, socket: &Path) -> Command {
    let mut command = Command::new("qemu-nbd");
    command.args(["--persistent", "--shared=4", "--discard=unmap", "--cache=none", "--aio=io_uring"]);
    command.arg("--socket").arg(socket);
    match volume.protection {
        Protection::Unencrypted => command.args(["-f", "raw"]).arg(volume.path()),
        Protection::Encrypted => command
            .arg("--object")
            .arg(format!("secret,id=key,file={}", volume.key_file().display()))
            .arg("--image-opts")
            .arg(format!(
                "driver=luks,key-secret=key,file.driver=file,file.discard=unmap,file.filename={}",
                volume.path().display()
            )),
    };
    command
}
