//! The command lines of programs that make and serve images on a cluster.

use std::path::Path;
use std::process::Command;

use crate::datapath::peers::qemu_secret;
use crate::programs::{ProgramError, option_value};
use crate::qemu_img;

/// How long QEMU may derive a key, in milliseconds; the derivation is not measured.
const DERIVATION_MS: u32 = 100;
/// The namespace of our volumes, which the cluster has.
pub const NAMESPACE: &str = "lab";

/// A server and what it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// QEMU's storage daemon with its driver `rbd`.
    QemuPlain,
    /// The same, with LUKS above it.
    QemuLuks,
    /// Our worker and storage process, clear.
    Clear,
    /// Encrypted.
    Encrypted,
    /// Encrypted, with a tag for each block.
    Tagged,
}

/// All of them.
pub const ALL: [Server; 5] =
    [Server::QemuPlain, Server::QemuLuks, Server::Clear, Server::Encrypted, Server::Tagged];

/// The cluster, and the files of the study.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The configuration of `client.admin`, with its keyring beside it.
    pub conf: &'a Path,
    /// The pool.
    pub pool: &'a str,
    /// The program that serves our volumes.
    pub program: &'a Path,
    /// The passphrase, and the key file.
    pub secret: &'a Path,
    /// Bytes of each image.
    pub bytes: u64,
}

impl Server {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::QemuPlain => "qemu-storage-daemon, rbd",
            Self::QemuLuks => "qemu-storage-daemon, rbd, LUKS",
            Self::Clear => "strongroom, clear",
            Self::Encrypted => "strongroom, encrypted",
            Self::Tagged => "strongroom, encrypted, tags",
        }
    }

    /// The name of its image.
    fn image(self) -> &'static str {
        match self {
            Self::QemuPlain => "raw",
            Self::QemuLuks => "luks",
            Self::Clear => "clear",
            Self::Encrypted => "encrypted",
            Self::Tagged => "tagged",
        }
    }

    /// Makes its image. Our servers do that themselves.
    pub fn create(self, place: Place<'_>) -> Result<(), ProgramError> {
        let mut command = Command::new("qemu-img");
        command.args(["create", "-q"]);
        match self {
            Self::QemuPlain => command.args(["-f", "raw"]),
            Self::QemuLuks => command
                .args(["-f", "luks", "--object", &qemu_secret(place.secret)])
                .args(["-o", &format!("key-secret=secret,iter-time={DERIVATION_MS},{}", qemu_img::KEY_HASH)]),
            Self::Clear | Self::Encrypted | Self::Tagged => return Ok(()),
        };
        command.arg(format!("rbd:{}/{}:conf={}", place.pool, self.image(), place.conf.display()));
        command.arg(place.bytes.to_string());
        qemu_img::create(&mut command)
    }

    /// The command line that serves its image at `socket` until it is ended.
    pub fn serve(self, place: Place<'_>, socket: &Path) -> Command {
        match self {
            Self::QemuPlain | Self::QemuLuks => self.storage_daemon(place, socket),
            Self::Clear | Self::Encrypted | Self::Tagged => {
                let mut command = Command::new(place.program);
                command.arg("serve").arg(place.conf).args([place.pool, NAMESPACE, self.image()]);
                command.arg(place.bytes.to_string()).arg(self.image()).arg(socket).arg(place.secret);
                command
            }
        }
    }

    fn storage_daemon(self, place: Place<'_>, socket: &Path) -> Command {
        let mut command = Command::new("qemu-storage-daemon");
        command.args([
            "--blockdev",
            &format!(
                "driver=rbd,node-name=image,pool={},image={},conf={},user=admin,cache.direct=on",
                place.pool,
                self.image(),
                option_value(place.conf),
            ),
        ]);
        if self == Self::QemuLuks {
            command.args(["--object", &qemu_secret(place.secret)]);
            command.args(["--blockdev", "driver=luks,node-name=disk,file=image,key-secret=secret"]);
        } else {
            command.args(["--blockdev", "driver=raw,node-name=disk,file=image"]);
        }
        command.args([
            "--export",
            &format!(
                "vhost-user-blk,id=export,node-name=disk,writable=on,num-queues=1,addr.type=unix,addr.path={}",
                option_value(socket)
            ),
        ]);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::line_of;

    #[test]
    fn servers_are_told_what_to_serve_and_never_the_secret_itself() {
        let place = Place {
            conf: Path::new("/c/ceph.conf"),
            pool: "rep2",
            program: Path::new("serve"),
            secret: Path::new("/d/secret"),
            bytes: 4096,
        };
        let line = |server: Server| line_of(&server.serve(place, Path::new("/s/socket")));
        assert_eq!(
            line(Server::Encrypted),
            "serve serve /c/ceph.conf rep2 lab encrypted 4096 encrypted /s/socket /d/secret"
        );
        assert!(line(Server::QemuPlain).contains("image=raw,conf=/c/ceph.conf,user=admin,cache.direct=on"));
        assert!(line(Server::QemuLuks).contains("driver=luks") && !line(Server::QemuPlain).contains("luks"));
        assert!(line(Server::QemuLuks).contains("secret,id=secret,file=/d/secret"));
    }
}
