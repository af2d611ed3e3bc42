//! Actions that a worker under an attacker's control would try, one deed each.

use std::ffi::CStr;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{chown, symlink};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sched::{CloneFlags, setns, unshare};
use rustix::fs::{AtFlags, Mode, OFlags, open, openat, unlinkat};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketType, sendmsg_addr, socket,
};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, chdir, fchdir, pidfd_send_signal, set_dumpable_behavior,
    setrlimit, test_kill_process,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, set_capabilities, set_thread_groups, set_thread_uid,
};
use strongroom_statistics::Page;

use super::probe::{Before, OWN, abstract_address, datagrams_name};
use super::raw::system_call;

/// One deed.
pub type Deed = fn(&Before) -> Result<(), Errno>;

/// The deed of a name.
pub fn find(name: &str) -> Option<Deed> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, deed)| *deed)
}

#[rustfmt::skip]
const ALL: &[(&str, Deed)] = &[
    // Files.
    ("open a file by its path", |before| open(before.directory.join("file"), OFlags::RDONLY, Mode::empty()).map(drop)),
    ("open a file in an open directory", |before| openat(&before.beneath, "file", OFlags::RDONLY, Mode::empty()).map(drop)),
    ("open a directory's parent", |before| openat(&before.beneath, "..", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).map(drop)),
    ("list the root directory", |_| open("/", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).map(drop)),
    ("open the device of networks", |_| open("/dev/net/tun", OFlags::RDWR, Mode::empty()).map(drop)),
    ("open a file by its handle", |before| before.handle.open(before.beneath.as_fd())),
    ("create a file in the root directory", |_| open("/new", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).map(drop)),
    ("create a file in an open directory", |before| openat(&before.beneath, "new", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).map(drop)),
    ("write to a file in an open directory", |before| openat(&before.beneath, "file", OFlags::TRUNC | OFlags::WRONLY, Mode::empty()).map(drop)),
    ("unlink a file", |before| unlinkat(&before.beneath, "file", AtFlags::empty())),
    ("climb out of the root directory", |before| {
        chdir("..")?;
        chdir("../..")?;
        let outside = before.directory.strip_prefix("/").unwrap().join("file");
        open(outside, OFlags::RDONLY, Mode::empty()).map(drop)
    }),
    ("go to an open directory and look up", |before| { fchdir(&before.beneath)?; chdir("..")?; open(".", OFlags::RDONLY, Mode::empty()).map(drop) }),

    ("write a file of its own", |before| {
        let path = before.directory.join(OWN).join("new");
        done(std::fs::write(&path, "new").and_then(|()| std::fs::read(&path)).and_then(|_| std::fs::remove_file(&path)))
    }),
    ("make a page for workers to count in, and read it", |_| match Page::make() {
        Ok(page) if page.read().in_flight == 0 => Ok(()),
        made => panic!("{made:?}"),
    }),
    ("give a file away", |before| done(chown(before.directory.join(OWN), Some(1), Some(1)))),
    ("link to a file elsewhere", |before| done(symlink(before.directory.join("file"), before.directory.join(OWN).join("link")))),

    // Networks.
    ("make a packet socket", |_| socket(AddressFamily::PACKET, SocketType::RAW, None).map(drop)),
    ("make a socket", |_| socket(AddressFamily::UNIX, SocketType::STREAM, None).map(drop)),
    ("connect to the host's loopback", |before| done(TcpStream::connect(("127.0.0.1", before.port)))),
    ("listen on TCP", |_| done(TcpListener::bind("127.0.0.1:0"))),
    ("connect to an abstract socket", |before| done(UnixStream::connect_addr(&abstract_address(&before.directory)))),
    ("connect to a socket's path", |before| done(UnixStream::connect(before.directory.join("socket")))),
    ("name a peer for a socket that is there", |before| {
        let name = SocketAddrUnix::new_abstract_name(&datagrams_name(&before.directory)).unwrap();
        let none = &mut SendAncillaryBuffer::default();
        sendmsg_addr(&before.datagrams, &name, &[io::IoSlice::new(b"x")], none, SendFlags::empty()).map(drop)
    }),

    // Other programs and processes.
    ("execute a program", |_| Err(errno(Command::new("/bin/true").exec()))),
    ("start a process", |_| done(Command::new("/bin/true").status())),
    ("fork", |_| match system_call(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0, 0, 0]) {
        // The forked copy.
        Ok(0) => std::process::exit(0),
        other => other.map(drop),
    }),
    ("clone, third version", |_| system_call(libc::SYS_clone3, [0; 6]).map(drop)),
    ("start a thread", |_| done(std::thread::Builder::new().spawn(|| ()))),
    ("attach to a process", |before| system_call(libc::SYS_ptrace, [libc::PTRACE_SEIZE as usize, pid(before), 0, 0, 0, 0]).map(drop)),
    ("read a process's memory", |before| {
        let mut byte = [0_u8; 1];
        let ours = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        let theirs = libc::iovec { iov_base: std::ptr::without_provenance_mut(4096), iov_len: 1 };
        let vectors = [&raw const ours, &raw const theirs].map(|vector| vector.expose_provenance());
        match system_call(libc::SYS_process_vm_readv, [pid(before), vectors[0], 1, vectors[1], 1, 0]) {
            // The kernel looked for it.
            Err(Errno::FAULT) => Ok(()),
            other => other.map(drop),
        }
    }),
    ("open a process's memory by its path", |before| of_process(before, "mem")),
    ("read a process's environment by its path", |before| of_process(before, "environ")),
    ("read a process's mappings by their path", |before| of_process(before, "maps")),
    ("list a process's files by their path", |before| of_process(before, "fd")),
    ("open a process's memory in an open directory", |before| openat(&before.process, "mem", OFlags::RDONLY, Mode::empty()).map(drop)),
    ("signal a process", |before| test_kill_process(before.target)),
    ("signal a process through its descriptor", |before| pidfd_send_signal(&before.pidfd, Signal::CONT)),
    ("take a descriptor of a process", |before| system_call(libc::SYS_pidfd_getfd, [before.pidfd.as_raw_fd() as usize, 0, 0, 0, 0, 0]).map(drop)),

    // Rights.
    ("become root", |_| set_thread_uid(Uid::ROOT)),
    ("join a group", |_| set_thread_groups(&[Gid::ROOT])),
    ("take capabilities", |_| {
        let all = CapabilitySet::CHOWN | CapabilitySet::SYS_ADMIN;
        set_capabilities(None, CapabilitySets { effective: all, permitted: all, inheritable: all })
    }),
    ("make a namespace", |_| unshare(CloneFlags::CLONE_NEWNET).map_err(from_nix)),
    ("make a user namespace", |_| unshare(CloneFlags::CLONE_NEWUSER).map_err(from_nix)),
    ("join the host's network", |before| setns(&before.network, CloneFlags::CLONE_NEWNET).map_err(from_nix)),
    ("mount", |_| mount("none", "/", "tmpfs", MountFlags::empty(), None)),
    ("become dumpable", |_| set_dumpable_behavior(DumpableBehavior::Dumpable)),
    ("raise a limit", |_| setrlimit(Resource::Nofile, Rlimit { current: Some(1 << 19), maximum: Some(1 << 19) })),
    ("allow core files", |_| setrlimit(Resource::Core, Rlimit { current: None, maximum: None })),

    // Memory and the kernel.
    ("map executable memory", |_| map(libc::PROT_READ | libc::PROT_EXEC).map(drop)),
    ("make memory executable", |_| {
        let memory = map(libc::PROT_READ | libc::PROT_WRITE)?;
        system_call(libc::SYS_mprotect, [memory, 4096, (libc::PROT_READ | libc::PROT_EXEC) as usize, 0, 0, 0]).map(drop)
    }),
    ("make a ring", |_| {
        let parameters = [0_u8; 120];
        system_call(libc::SYS_io_uring_setup, [1, parameters.as_ptr().expose_provenance(), 0, 0, 0, 0]).map(drop)
    }),
    ("register buffers with a ring", |before| system_call(libc::SYS_io_uring_register, [before.beneath.as_raw_fd() as usize, 0, 0, 0, 0, 0]).map(drop)),
    ("handle page faults", |_| system_call(libc::SYS_userfaultfd, [0; 6]).map(drop)),
    ("load a program into the kernel", |_| system_call(libc::SYS_bpf, [0; 6]).map(drop)),
    ("use the kernel's keys", |_| system_call(libc::SYS_keyctl, [0, libc::KEY_SPEC_SESSION_KEYRING as usize, 0, 0, 0, 0]).map(drop)),
    ("measure the processor", |_| system_call(libc::SYS_perf_event_open, [0; 6]).map(drop)),
    ("load a module", |_| system_call(libc::SYS_init_module, [0; 6]).map(drop)),
    ("end the machine", |_| system_call(libc::SYS_reboot, [0; 6]).map(drop)),
    ("read the kernel's log", |_| system_call(libc::SYS_syslog, [10, 0, 0, 0, 0, 0]).map(drop)),
    ("control a terminal", |before| system_call(libc::SYS_ioctl, [before.beneath.as_raw_fd() as usize, libc::TIOCSTI as usize, 0, 0, 0, 0]).map(drop)),
];

fn pid(before: &Before) -> usize {
    before.target.as_raw_nonzero().get() as usize
}

/// Opens and reads a file of the target below `/proc`.
fn of_process(before: &Before, name: &str) -> Result<(), Errno> {
    let path = format!("/proc/{}/{name}", before.target.as_raw_nonzero());
    if name == "fd" {
        return done(std::fs::read_dir(path).and_then(|entries| entries.collect::<Result<Vec<_>, _>>()));
    }
    let file = open(path, OFlags::RDONLY, Mode::empty())?;
    let mut bytes = [0; 16];
    match name {
        "mem" => Ok(()),
        _ => rustix::io::read(&file, &mut bytes).map(drop),
    }
}

fn map(protection: i32) -> Result<usize, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    system_call(libc::SYS_mmap, [0, 4096, protection as usize, flags as usize, usize::MAX, 0])
}

fn done<T>(result: io::Result<T>) -> Result<(), Errno> {
    result.map(drop).map_err(errno)
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or_else(|| panic!("{error}"))
}

fn from_nix(errno: nix::errno::Errno) -> Errno {
    Errno::from_raw_os_error(errno as i32)
}

/// A file handle, which names a file without a path for privileged processes.
pub struct FileHandle([u32; Self::WORDS]);

impl FileHandle {
    /// Its head, and `MAX_HANDLE_SZ`.
    const WORDS: usize = 2 + 128 / 4;

    /// The handle of a file in a directory.
    pub fn of(directory: BorrowedFd<'_>, name: &CStr) -> Self {
        let mut handle = [0; Self::WORDS];
        handle[0] = 128;
        let mut mount = [0_u64; 1];
        let arguments = [
            directory.as_raw_fd() as usize,
            name.as_ptr().expose_provenance(),
            handle.as_mut_ptr().expose_provenance(),
            mount.as_mut_ptr().expose_provenance(),
            0,
            0,
        ];
        // Some file systems have no handles; the deed is then refused as with one.
        let _ = system_call(libc::SYS_name_to_handle_at, arguments);
        Self(handle)
    }

    fn open(&self, mount: BorrowedFd<'_>) -> Result<(), Errno> {
        let handle = self.0.as_ptr().expose_provenance();
        system_call(libc::SYS_open_by_handle_at, [mount.as_raw_fd() as usize, handle, 0, 0, 0, 0]).map(drop)
    }
}
