//! The command lines of programs that make and serve disks.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::workload::{Client, Medium};
use crate::programs::{ProgramError, option_value, run};
use crate::qemu_img;

/// A server, as started for a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// QEMU's storage daemon, over vhost-user.
    StorageDaemon(Content),
    /// qemu-nbd.
    QemuNbd(Content),
    /// nbdkit.
    Nbdkit(Content),
    /// This project's program.
    Strongroom(Build, Content),
}

/// A build of this project's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    /// The program.
    pub program: PathBuf,
    /// Its name in reports.
    pub name: &'static str,
}

/// The served content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A file or volume of plain blocks.
    Clear,
    /// The same, encrypted.
    Encrypted,
    /// Memory of the server, plain.
    Memory,
    /// Memory of the server, encrypted.
    EncryptedMemory,
    /// Nothing: reads and writes are answered without effect.
    Nothing,
}

/// Required programs of others, and their Debian packages.
pub const PACKAGES: [(&str, &str); 6] = [
    ("fio", "fio"),
    ("qemu-img", "qemu-utils"),
    ("qemu-nbd", "qemu-utils"),
    ("qemu-storage-daemon", "qemu-system-common"),
    ("nbdkit", "nbdkit"),
    ("nbdinfo", "libnbd-bin"),
];

impl Server {
    /// Its name in reports.
    pub fn name(&self) -> String {
        let (program, content) = match self {
            Self::StorageDaemon(content) => ("qemu-storage-daemon", content),
            Self::QemuNbd(content) => ("qemu-nbd", content),
            Self::Nbdkit(content) => ("nbdkit", content),
            Self::Strongroom(build, content) => (build.name, content),
        };
        let content = match (self, content) {
            (Self::Nbdkit(_), Content::Clear) => "file",
            (Self::Nbdkit(_), Content::Encrypted) => "file, luks filter",
            (Self::Nbdkit(_), Content::Memory) => "memory",
            (Self::Strongroom(..), Content::Clear) => "clear",
            (Self::Strongroom(..), Content::Encrypted) => "encrypted",
            (_, Content::Memory) => "memory, clear",
            (_, Content::EncryptedMemory) => "memory, encrypted",
            (_, Content::Clear) => "raw",
            (_, Content::Encrypted) => "LUKS",
            (_, Content::Nothing) => "null (does no I/O)",
        };
        format!("{program}, {content}")
    }

    /// The served content.
    pub fn content(&self) -> Content {
        match self {
            Self::StorageDaemon(content) | Self::QemuNbd(content) | Self::Nbdkit(content) => *content,
            Self::Strongroom(_, content) => *content,
        }
    }

    /// Whether its content is not in a file.
    pub fn has_no_file(&self) -> bool {
        matches!(self.content(), Content::Memory | Content::EncryptedMemory | Content::Nothing)
    }

    /// Whether it is this project's program.
    pub fn is_ours(&self) -> bool {
        matches!(self, Self::Strongroom(..))
    }

    /// The required program.
    pub fn program(&self) -> &str {
        match self {
            Self::StorageDaemon(_) => "qemu-storage-daemon",
            Self::QemuNbd(_) => "qemu-nbd",
            Self::Nbdkit(_) => "nbdkit",
            Self::Strongroom(build, _) => build.program.to_str().unwrap_or("strongroom"),
        }
    }

    /// Whether it can serve content on this medium, to this client.
    pub fn serves(&self, medium: Medium, client: Client) -> bool {
        let in_memory = self.has_no_file();
        match (client, medium) {
            (Client::VhostUser, Medium::Memory) => {
                in_memory && matches!(self, Self::StorageDaemon(_) | Self::Strongroom(..))
            }
            (Client::VhostUser, Medium::Disk) => {
                !in_memory && matches!(self, Self::StorageDaemon(_) | Self::Strongroom(..))
            }
            // Servers of files use tmpfs.
            (Client::Nbd, Medium::Memory) => !matches!(self, Self::StorageDaemon(_)),
            (Client::Nbd, Medium::Disk) => !in_memory && !matches!(self, Self::StorageDaemon(_)),
        }
    }

    /// The command line that serves one disk at `socket` until it is ended. `image` is the file or
    /// volume, if there is one, and `bytes` the size of a disk in memory.
    pub fn serve(&self, disk: &ServedDisk<'_>) -> Command {
        match self {
            Self::StorageDaemon(content) => storage_daemon(*content, disk),
            Self::QemuNbd(content) => qemu_nbd(*content, disk),
            Self::Nbdkit(content) => nbdkit(*content, disk),
            Self::Strongroom(build, content) => strongroom(&build.program, *content, disk),
        }
    }
}

/// A disk to serve.
#[derive(Clone, Copy, Debug)]
pub struct ServedDisk<'a> {
    /// The file or volume, if there is one.
    pub image: &'a Path,
    /// The size of a disk in memory, in bytes.
    pub bytes: u64,
    /// The medium.
    pub medium: Medium,
    /// The kind of client.
    pub client: Client,
    /// The socket.
    pub socket: &'a Path,
    /// The passphrase, or key.
    pub secret: &'a Path,
    /// Queues that the client will use.
    pub queues: u16,
}

fn storage_daemon(content: Content, disk: &ServedDisk<'_>) -> Command {
    let mut command = Command::new("qemu-storage-daemon");
    let (image, socket) = (option_value(disk.image), option_value(disk.socket));
    if content == Content::Nothing {
        let null = format!("driver=null-co,node-name=disk,size={},read-zeroes=off", disk.bytes);
        command.args(["--blockdev", &null]);
    } else {
        let file = format!("driver=file,node-name=file,filename={image},cache.direct=on,aio=io_uring");
        command.args(["--blockdev", &file]);
        if content == Content::Encrypted {
            command.args(["--object", &qemu_secret(disk.secret)]);
            command.args(["--blockdev", "driver=luks,node-name=disk,file=file,key-secret=secret"]);
        } else {
            command.args(["--blockdev", "driver=raw,node-name=disk,file=file"]);
        }
    }
    let export = format!(
        "vhost-user-blk,id=export,node-name=disk,writable=on,num-queues={},addr.type=unix,addr.path={socket}",
        disk.queues
    );
    command.args(["--export", &export]);
    command
}

fn qemu_nbd(content: Content, disk: &ServedDisk<'_>) -> Command {
    let mut command = Command::new("qemu-nbd");
    command.arg("--socket").arg(disk.socket).args(["--persistent", "--shared=8", "--discard=unmap"]);
    let file = format!(
        "file.driver=file,file.filename={},file.aio=io_uring,file.cache.direct=on",
        option_value(disk.image)
    );
    if content == Content::Encrypted {
        command.args(["--object", &qemu_secret(disk.secret)]);
        command.args(["--image-opts", &format!("driver=luks,key-secret=secret,{file}")]);
    } else {
        command.args(["--image-opts", &format!("driver=raw,{file}")]);
    }
    command
}

fn nbdkit(content: Content, disk: &ServedDisk<'_>) -> Command {
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(disk.socket);
    if content == Content::Memory {
        command.args(["memory", &disk.bytes.to_string()]);
        return command;
    }
    if content == Content::Encrypted {
        command.arg("--filter=luks");
    }
    command.arg("file").arg(disk.image).arg("fadvise=random");
    if disk.medium == Medium::Disk {
        // Its plugin has no O_DIRECT. This keeps the page cache from serving reads of the disk.
        command.arg("cache=none");
    }
    if content == Content::Encrypted {
        command.arg(format!("passphrase=+{}", disk.secret.display()));
    }
    command
}

fn strongroom(program: &Path, content: Content, disk: &ServedDisk<'_>) -> Command {
    let mut command = Command::new(program);
    match content {
        Content::Memory | Content::EncryptedMemory | Content::Nothing => {
            command.args(["volume", "expose-memory", "--size", &disk.bytes.to_string()]);
            command.args((content == Content::Memory).then_some("--unencrypted"));
        }
        Content::Encrypted => {
            command.args(["volume", "expose"]).arg(disk.image).arg("--key-file").arg(disk.secret);
        }
        Content::Clear => {
            command.args(["volume", "expose"]).arg(disk.image).arg("--unencrypted");
        }
    }
    let protocol = match disk.client {
        Client::VhostUser => "--vhost-user",
        Client::Nbd => "--nbd",
    };
    command.arg(protocol).arg(format!("unix:{}", disk.socket.display()));
    command
}

/// Makes a volume with `program`, with default options.
pub fn create_volume(
    program: &Path,
    path: &Path,
    bytes: u64,
    key: Option<&Path>,
) -> Result<(), ProgramError> {
    let mut command = Command::new(program);
    command.args(["volume", "create"]).arg(path).args(["--size", &bytes.to_string()]);
    match key {
        Some(key) => command.arg("--key-file").arg(key),
        None => command.arg("--unencrypted"),
    };
    run(&mut command).map(drop)
}

/// Makes a LUKS image: with qemu-img's defaults, or preallocated and with a key derivation of
/// `derivation_ms` instead of two seconds.
pub fn create_luks(
    path: &Path,
    bytes: u64,
    secret: &Path,
    derivation_ms: Option<u32>,
) -> Result<(), ProgramError> {
    let mut command = Command::new("qemu-img");
    command.args(["create", "-q", "--object", &qemu_secret(secret), "-f", "luks"]);
    let options = derivation_ms
        .map(|ms| format!(",preallocation=falloc,iter-time={ms},{}", qemu_img::KEY_HASH))
        .unwrap_or_default();
    command.args(["-o", &format!("key-secret=secret{options}")]);
    command.arg(path).arg(bytes.to_string());
    qemu_img::create(&mut command)
}

pub(crate) fn qemu_secret(file: &Path) -> String {
    format!("secret,id=secret,file={}", option_value(file))
}

/// The first line of a program's version output; `None` if it cannot be run.
pub fn version(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::line_of;

    fn served(server: &Server, medium: Medium, client: Client) -> String {
        let path = Path::new;
        let (image, socket, secret) = (path("/d/image"), path("/s/socket"), path("/d/secret"));
        let disk = ServedDisk { image, bytes: 4096, medium, client, socket, secret, queues: 2 };
        line_of(&server.serve(&disk))
    }

    #[test]
    fn servers_are_told_what_to_serve_and_never_the_secret_itself() {
        let line = served(&Server::StorageDaemon(Content::Encrypted), Medium::Disk, Client::VhostUser);
        assert!(line.contains("cache.direct=on,aio=io_uring") && line.contains("num-queues=2"), "{line}");
        assert!(line.contains("secret,id=secret,file=/d/secret") && line.contains("driver=luks"), "{line}");
        let on_disk = served(&Server::Nbdkit(Content::Encrypted), Medium::Disk, Client::Nbd);
        let on_tmpfs = served(&Server::Nbdkit(Content::Encrypted), Medium::Memory, Client::Nbd);
        assert!(on_disk.contains("--filter=luks file /d/image") && on_disk.contains("passphrase=+/d/secret"));
        assert!(on_disk.contains("cache=none") && !on_tmpfs.contains("cache=none"), "{on_disk}, {on_tmpfs}");
        let build = Build { program: "strongroom".into(), name: "strongroom" };
        let line =
            |content, client| served(&Server::Strongroom(build.clone(), content), Medium::Disk, client);
        assert_eq!(
            line(Content::Encrypted, Client::VhostUser),
            "strongroom volume expose /d/image --key-file /d/secret --vhost-user unix:/s/socket"
        );
        assert_eq!(
            line(Content::Memory, Client::Nbd),
            "strongroom volume expose-memory --size 4096 --unencrypted --nbd unix:/s/socket"
        );
    }

    #[test]
    fn who_serves_files_serves_them_where_its_clients_reach_it() {
        use Client::{Nbd, VhostUser};
        let daemon = Server::StorageDaemon(Content::Clear);
        assert!(daemon.serves(Medium::Disk, VhostUser) && !daemon.serves(Medium::Disk, Nbd));
        assert!(Server::StorageDaemon(Content::Nothing).serves(Medium::Memory, VhostUser));
        assert!(!Server::QemuNbd(Content::Clear).serves(Medium::Disk, VhostUser));
        assert!(Server::Nbdkit(Content::Clear).serves(Medium::Memory, Nbd));
        assert!(!Server::Nbdkit(Content::Memory).serves(Medium::Disk, Nbd));
    }

    #[test]
    fn a_program_that_is_not_there_has_no_version() {
        assert_eq!(version("/no/such/program"), None);
    }
}
