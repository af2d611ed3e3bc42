//! Which volume of Strongroom is behind a network block device of this machine's kernel: its
//! client's command names a socket, a process of ours listens on it, and that process was told
//! which volume to expose.

use std::path::{Path, PathBuf};

use strongroom_hostd::checks::Root;
use strongroom_hostd::checks::storage::BlockDevice;

/// The volume, if it is one of ours.
pub fn server_of(root: &Root, device: &BlockDevice) -> Option<PathBuf> {
    let client = device.attribute("pid")?;
    let words = command(root, &client);
    let socket = words.iter().find_map(|word| {
        let path = word.rsplit("socket=").next().unwrap_or(word);
        let path = path.strip_prefix("unix:").unwrap_or(path);
        path.starts_with('/').then(|| listening(root, path)).flatten()
    })?;
    exposed_by(root, &socket)
}

/// The words of a process's command.
fn command(root: &Root, pid: &str) -> Vec<String> {
    let words = root.read(Path::new("/proc").join(pid).join("cmdline")).unwrap_or_default();
    words.split('\0').map(str::to_owned).collect()
}

/// The inode of the socket that listens at a path (proc_net(5): `unix`).
fn listening(root: &Root, path: &str) -> Option<String> {
    let sockets = root.read("/proc/net/unix")?;
    sockets.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        (fields.get(7) == Some(&path)).then(|| fields.get(6).map(|inode| (*inode).to_owned())).flatten()
    })
}

/// The volume of the `volume expose` that has a socket open.
fn exposed_by(root: &Root, inode: &str) -> Option<PathBuf> {
    let processes = std::fs::read_dir(root.path("/proc")).ok()?.flatten();
    let pids = processes
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    for pid in pids {
        let words = command(root, &pid);
        // `volume expose PATH ...`
        let Some(at) = words.windows(2).position(|two| two == ["volume", "expose"]) else { continue };
        let Some(volume) = words.get(at + 2) else { continue };
        let descriptors =
            std::fs::read_dir(root.path("/proc").join(&pid).join("fd")).into_iter().flatten().flatten();
        let target = format!("socket:[{inode}]");
        if descriptors
            .filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .any(|link| link == Path::new(&target))
        {
            let within = std::fs::read_link(root.path("/proc").join(&pid).join("cwd")).unwrap_or_default();
            return Some(within.join(volume));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use strongroom_hostd::checks::storage::Support;

    use super::*;

    #[test]
    fn a_block_device_leads_to_the_volume_that_is_exposed() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        for (path, content) in [
            ("/sys/class/block/nbd0/pid", "70"),
            ("/proc/70/cmdline", "nbd-client\0-unix\0/run/home.sock\0/dev/nbd0\0"),
            (
                "/proc/net/unix",
                "Num RefCount Protocol Flags Type St Inode Path\n0: 2 0 10000 1 1 4242 /run/home.sock\n",
            ),
            (
                "/proc/81/cmdline",
                "/usr/bin/strongroom\0volume\0expose\0ds/home\0--nbd\0unix:/run/home.sock\0",
            ),
        ] {
            std::fs::create_dir_all(root.path(path).parent().unwrap()).unwrap();
            std::fs::write(root.path(path), content).unwrap();
        }
        std::fs::create_dir(root.path("/proc/81/fd")).unwrap();
        std::os::unix::fs::symlink("socket:[4242]", root.path("/proc/81/fd/7")).unwrap();
        std::os::unix::fs::symlink("/srv", root.path("/proc/81/cwd")).unwrap();
        let device = BlockDevice::of_path(&root, Path::new("/dev/nbd0")).unwrap();
        assert_eq!(server_of(&root, &device), Some(PathBuf::from("/srv/ds/home")));
        assert!(matches!(Support::Device(device).layers(&root)[..], [Support::Device(_)]));
        std::fs::remove_file(root.path("/proc/81/fd/7")).unwrap();
        let device = BlockDevice::of_path(&root, Path::new("/dev/nbd0")).unwrap();
        assert_eq!(server_of(&root, &device), None);
    }
}
