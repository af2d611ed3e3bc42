//! A root directory with only programs, libraries, and a machine's own files.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};
use rustix::process::{chdir, pivot_root};

use super::message::{Become, Visible};

/// Where the new root is mounted before it becomes the root. It always exists, and no visible path
/// is below it.
const MOUNT_POINT: &str = "/proc";
/// Room for some hundred directories, links and empty files as mount points.
const SIZE: &std::ffi::CStr = c"size=64k,nr_inodes=512,mode=0755";
/// Programs and libraries. On merged systems, the last two are links into the first.
const SYSTEM: [&str; 3] = ["/usr", "/lib", "/lib64"];
/// The devices that every program may open.
const DEVICES: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/urandom"];

/// Leaves the host's root. After an error, the process may be in either root and must exit, unless
/// nothing was mounted.
pub(super) fn enter_own_root(visible: &[Visible], becomes: &Become) -> Result<(), String> {
    let said = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    // Otherwise the mounts would propagate to the host, or the change of the root would be refused.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|errno| said("separate the mounts")(errno.into()))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("none", MOUNT_POINT, "tmpfs", flags, SIZE)
        .map_err(|errno| said("mount a root directory")(errno.into()))?;
    let programs = SYSTEM.into_iter().map(Visible::read).chain(DEVICES.into_iter().map(Visible::device));
    // A program outside the system directories comes with its own directory.
    let program = match becomes {
        Become::Program(path) => path.as_path(),
        Become::FrameFilter | Become::Monitor | Become::AgentMonitor | Become::TpmGate => Path::new("/usr"),
    };
    let prefix = program.parent().and_then(Path::parent).filter(|_| !program.starts_with("/usr"));
    let own = prefix.filter(|prefix| *prefix != Path::new("/")).map(Visible::read);
    for shown in programs.chain(own).chain(visible.iter().cloned()) {
        show(&shown).map_err(|error| format!("show {}: {error}", shown.path.display()))?;
    }
    enter().map_err(said("change the root directory"))
}

fn show(shown: &Visible) -> io::Result<()> {
    let inside = inside(&shown.path);
    if let Some(parent) = inside.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    let metadata = std::fs::symlink_metadata(&shown.path)?;
    if metadata.is_symlink() && SYSTEM.iter().any(|system| shown.path == Path::new(system)) {
        return symlink(std::fs::read_link(&shown.path)?, &inside);
    }
    // Already visible through a parent directory.
    if inside.exists() && metadata.is_dir() && std::fs::read_dir(&inside)?.next().is_some() {
        return Ok(());
    }
    if std::fs::metadata(&shown.path)?.is_dir() {
        DirBuilder::new().recursive(true).mode(0o755).create(&inside)?;
    } else {
        File::options().create(true).append(true).open(&inside)?;
    }
    mount_bind_recursive(&shown.path, &inside)?;
    let mut flags = MountFlags::NOSUID | MountFlags::BIND;
    if !shown.writable {
        flags |= MountFlags::RDONLY;
    }
    if !shown.device {
        flags |= MountFlags::NODEV;
    }
    mount_remount(&inside, flags | kept(&inside)?, "")?;
    Ok(())
}

/// The flags of the original mount, which cannot be cleared in a user namespace.
fn kept(path: &Path) -> io::Result<MountFlags> {
    let flags = statvfs(path)?.f_flag;
    let pairs = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    let kept = pairs.iter().filter(|(has, _)| flags.contains(*has));
    Ok(kept.fold(MountFlags::empty(), |all, (_, flag)| all | *flag))
}

fn inside(path: &Path) -> PathBuf {
    Path::new(MOUNT_POINT).join(path.strip_prefix("/").unwrap_or(path))
}

fn enter() -> io::Result<()> {
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount_remount(MOUNT_POINT, flags, "")?;
    chdir(MOUNT_POINT)?;
    // The old root is stacked over the new one, and is unmounted.
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")?;
    Ok(())
}
