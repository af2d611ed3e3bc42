//! Makes a ring: disabled at first, then restricted to the operations of this crate, and only then
//! enabled.
//!
//! A thread that its guest has compromised can write any entry into its ring. So the kernel
//! restricts the ring beforehand to eight operations, on files in its table, for the ring's
//! lifetime.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::error::RingError;
use crate::registered::RegisteredChunks;

/// The files that a ring can register: a volume's chain of 256 layers, each with two files beside
/// it, and a thread's sockets. A place takes 8 bytes in the kernel. The kernel makes no table
/// larger than the limit of open files, which is often this number.
const PLACES_MAX: u32 = 1024;

/// The place of the event that wakes the thread, for the ring's lifetime.
pub(crate) const WAKER_PLACE: u32 = 0;

/// The operations of a ring: exactly those for which `uring` makes entries.
const OPERATIONS: [u8; 8] = [
    opcode::Read::CODE,
    opcode::Write::CODE,
    opcode::ReadFixed::CODE,
    opcode::WriteFixed::CODE,
    opcode::Fsync::CODE,
    opcode::Fallocate::CODE,
    opcode::PollAdd::CODE,
    opcode::AsyncCancel::CODE,
];

/// The changes that an enabled ring allows, as numbered in `linux/io_uring.h`:
/// `IORING_UNREGISTER_FILES`, `IORING_REGISTER_FILES_UPDATE`, which takes descriptors that the
/// process already has, and `IORING_REGISTER_BUFFERS_UPDATE`, which takes memory that the process
/// already has.
const REGISTRATIONS: [u8; 3] = [3, 6, 16];

/// Makes a ring with `entries` submission entries for the calling thread. Returns also the count of
/// places in its table of files, of which the first is `waker`'s and the others are empty, and its
/// empty table of memory.
pub(crate) fn set_up(
    entries: u32,
    waker: BorrowedFd<'_>,
) -> Result<(IoUring, u32, RegisteredChunks), RingError> {
    let ring = make_disabled(entries)?;
    if !ring.params().is_feature_nodrop() {
        return Err(RingError::TooOld("completions that are never dropped (5.5)"));
    }
    if !ring.params().is_feature_ext_arg() {
        return Err(RingError::TooOld("waiting with a timeout (5.11)"));
    }
    let failed = |error| RingError::of_setup(entries, &error);
    let open_files_max = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let places = PLACES_MAX.min(u32::try_from(open_files_max).unwrap_or(PLACES_MAX)).max(1);
    let mut files: Vec<RawFd> = vec![-1; places as usize];
    files[WAKER_PLACE as usize] = waker.as_raw_fd();
    ring.submitter().register_files(&files).map_err(failed)?;
    let chunks = RegisteredChunks::new(&ring);
    // Every kernel with the features above supports these (5.10).
    ring.submitter().register_restrictions(&mut restrictions()).map_err(failed)?;
    ring.submitter().register_enable_rings().map_err(failed)?;
    Ok((ring, places, chunks))
}

/// Makes a ring with those of these features that the kernel has: completions that run only when
/// this thread asks (6.1), or at least without interrupting it (5.19), and submission that
/// continues after an entry that fails (5.18). The ring accepts no entries yet.
fn make_disabled(entries: u32) -> Result<IoUring, RingError> {
    let of_6_1 = |builder: &mut io_uring::Builder| {
        builder
            .setup_submit_all()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_single_issuer()
            .setup_defer_taskrun();
    };
    let of_5_19 = |builder: &mut io_uring::Builder| {
        builder.setup_submit_all().setup_coop_taskrun().setup_taskrun_flag();
    };
    let attempts: [&dyn Fn(&mut io_uring::Builder); 3] = [&of_6_1, &of_5_19, &|_| {}];
    let mut refused = RingError::TooOld("every way to set one up");
    for choose in attempts {
        let mut builder = IoUring::builder();
        // A child process must not inherit the queues' memory.
        builder.dontfork();
        builder.setup_r_disabled();
        choose(&mut builder);
        match builder.build(entries) {
            Ok(ring) => return Ok(ring),
            Err(error) => {
                refused = RingError::of_setup(entries, &error);
                if Errno::from_io_error(&error) != Some(Errno::INVAL) {
                    break;
                }
            }
        }
    }
    Err(refused)
}

/// The allowed operations, changes and flags. Only the required flag is allowed, so links, drains
/// and buffers chosen by the kernel are not.
fn restrictions() -> Vec<Restriction> {
    let operations = OPERATIONS.into_iter().map(Restriction::sqe_op);
    let registrations = REGISTRATIONS.into_iter().map(Restriction::register_op);
    let fixed_file = Restriction::sqe_flags_required(squeue::Flags::FIXED_FILE.bits());
    operations.chain(registrations).chain([fixed_file]).collect()
}
