use std::os::unix::fs::symlink;

use strongroom_host::run_directory::HostRunDirectory;
use strongroom_types::VmId;
use tempfile::TempDir;

use super::*;

/// A user without access to the files that tests make.
const OTHER_USER: u32 = 65534;

struct Host {
    scratch: TempDir,
    directories: Vec<PathBuf>,
}

impl Host {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let boot = scratch.path().join("boot");
        std::fs::create_dir(&boot).unwrap();
        Self { scratch, directories: vec![boot] }
    }

    fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.scratch.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    fn refused(&self, kernel: &Path) -> (String, String) {
        let problem = check(each(&kernel_of(kernel, None)), &self.directories).unwrap_err();
        (problem.code, problem.message)
    }
}

fn kernel_of(kernel: &Path, initrd: Option<&Path>) -> DirectKernel {
    DirectKernel { kernel: kernel.into(), initrd: initrd.map(Into::into), arguments: String::new() }
}

#[test]
fn only_regular_files_in_directories_for_kernels_are_taken() {
    let host = Host::new();
    let kernel = host.file("boot/kernel", b"k");
    check(each(&kernel_of(&kernel, Some(&kernel))), &host.directories).unwrap();

    let outside = host.file("outside", b"o");
    let link = host.scratch.path().join("boot/link");
    symlink(&outside, &link).unwrap();
    for path in [&outside, &link, &host.scratch.path().join("boot/../outside")] {
        let (code, message) = host.refused(path);
        assert_eq!(code, "boot_file_not_allowed", "{message}");
        assert!(message.contains(path.to_str().unwrap()), "{message}");
    }
    // For files elsewhere, the error does not reveal whether they exist.
    let said = |name: &str| host.refused(&host.scratch.path().join(name)).1.replace(name, "");
    assert_eq!(said("outside"), said("nothing"));
    let fifo = host.scratch.path().join("boot/fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert_eq!(host.refused(&fifo).0, "boot_file_unreadable");
    assert_eq!(host.refused(&host.directories[0]).0, "boot_file_unreadable");
    let missing = host.scratch.path().join("boot/missing");
    assert_eq!(
        host.refused(&missing),
        ("boot_file_missing".into(), format!("there is no file {} on the host", missing.display()))
    );
    let problem = check(each(&kernel_of(&kernel, Some(&missing))), &host.directories).unwrap_err();
    assert_eq!(problem.code, "boot_file_missing");
}

/// Runs `work` as a user who cannot read other users' private files.
fn as_other_user<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                let uid = rustix::process::Uid::from_raw(OTHER_USER);
                // Changes the ids of this thread only.
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            }
            work()
        });
        thread.join().unwrap()
    })
}

#[test]
fn who_cannot_read_what_is_said() {
    let host = Host::new();
    let kernel = host.file("boot/kernel", b"k");
    let set_mode =
        |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    let open_all = || {
        set_mode(host.scratch.path(), 0o755);
        set_mode(&host.directories[0], 0o755);
        set_mode(&kernel, 0o644);
    };
    // Each obstacle on the path alone.
    for wall in [host.scratch.path(), &host.directories[0], &kernel] {
        open_all();
        set_mode(wall, 0o000);
        let (code, message) = as_other_user(|| host.refused(&kernel));
        set_mode(wall, 0o700);
        assert_eq!(code, "boot_file_unreadable", "{message}");
        let uid = if rustix::process::geteuid().is_root() {
            OTHER_USER
        } else {
            rustix::process::geteuid().as_raw()
        };
        for part in [
            format!("uid {uid}, cannot read {}", kernel.display()),
            format!("; {} has owner uid", wall.display()),
            "mode 0000".to_owned(),
        ] {
            assert!(message.contains(&part), "{part:?} is not in {message:?}");
        }
    }
}

#[test]
fn a_copy_is_readable_by_others_whole_and_no_larger_than_the_memory() {
    let host = Host::new();
    let (kernel, initrd) = (host.file("boot/kernel", &[1; 5000]), host.file("boot/initrd", &[2; 3000]));
    for private in [&kernel, &initrd] {
        std::fs::set_permissions(private, PermissionsExt::from_mode(0o600)).unwrap();
    }
    let run = HostRunDirectory::at(&host.scratch.path().join("r")).unwrap().vm(VmId::random());
    let boot = kernel_of(&kernel, Some(&initrd));
    let copy_within = |memory_bytes| {
        run.remove().and_then(|()| run.make()).unwrap();
        copy(&boot, memory_bytes, &run, &host.directories)
    };
    copy_within(8000).unwrap();
    assert_eq!(std::fs::read(run.kernel()).unwrap(), [1; 5000]);
    assert_eq!(std::fs::read(run.initrd()).unwrap(), [2; 3000]);
    for copy in [run.kernel(), run.initrd()] {
        assert_eq!(copy.metadata().unwrap().mode() & 0o777, COPY_MODE);
    }
    for memory_bytes in [7999, 4999, 0] {
        assert_eq!(copy_within(memory_bytes).unwrap_err().code, "kernel_too_large");
    }
}
