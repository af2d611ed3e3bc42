//! QEMU's own disk servers.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::SOON;

/// A server that ends with its test.
pub struct Server {
    child: Child,
    pub socket: PathBuf,
}

impl Server {
    /// qemu-nbd with a file, under the name `disk`.
    pub fn nbd(socket: &Path, file: &Path) -> Self {
        let mut command = Command::new("qemu-nbd");
        command
            .args(["--persistent", "--format=raw", "--export-name=disk", "--socket"])
            .arg(socket)
            .arg(file);
        Self::start(command, socket)
    }

    /// qemu-storage-daemon with a vhost-user-blk device on a file.
    pub fn vhost_user(socket: &Path, file: &Path) -> Self {
        let mut command = Command::new("qemu-storage-daemon");
        let file = format!("driver=file,node-name=file,filename={}", file.display());
        let export = format!(
            "type=vhost-user-blk,id=disk,node-name=file,writable=on,num-queues=2,addr.type=unix,addr.path={}",
            socket.display()
        );
        command.args(["--blockdev", &file, "--export", &export]);
        Self::start(command, socket)
    }

    fn start(mut command: Command, socket: &Path) -> Self {
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        let server = Self { child, socket: socket.to_owned() };
        let until = Instant::now() + SOON;
        while !socket.exists() {
            assert!(Instant::now() < until, "{command:?} does not listen");
            std::thread::park_timeout(Duration::from_millis(5));
        }
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file of this size.
pub fn file(path: &Path, bytes: u64) -> PathBuf {
    std::fs::File::create(path).unwrap().set_len(bytes).unwrap();
    path.to_owned()
}
