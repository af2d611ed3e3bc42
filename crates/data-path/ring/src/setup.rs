//! How a ring is made: disabled, narrowed down to what this room does with it, and only then
//! enabled.
//!
//! A thread that was taken over by its guest can write any entry into its ring. So the kernel is
//! told beforehand what this ring is for: eight operations, on files that were put into its table,
//! and nothing else, for as long as the ring lives.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::error::RingError;
use crate::registered::RegisteredChunks;

/// Files that a ring knows: a volume's chain of 256 layers, each with two files beside it, and a
/// thread's sockets. A place takes 8 bytes of the kernel's. The kernel makes no table larger than
/// the limit of open files, which is often this.
const PLACES_MAX: u32 = 1024;

/// The place of the event that wakes the thread, for as long as the ring lives.
pub(crate) const WAKER_PLACE: u32 = 0;

/// What a ring can do: what `uring` makes entries of, and no more.
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

/// What can be changed of a ring that is enabled, as `linux/io_uring.h` numbers it:
/// `IORING_UNREGISTER_FILES`, `IORING_REGISTER_FILES_UPDATE`, which takes descriptors that the
/// process has already, and `IORING_REGISTER_BUFFERS_UPDATE`, which takes memory that the process
/// has already.
const REGISTRATIONS: [u8; 3] = [3, 6, 16];

/// A ring with `entries` submission entries for the calling thread; the count of places in its
/// table of files, of which the first is `waker`'s and all others are empty; and its table of
/// memory, which is empty.
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
    // Every kernel with the features above has these (5.10).
    ring.submitter().register_restrictions(&mut restrictions()).map_err(failed)?;
    ring.submitter().register_enable_rings().map_err(failed)?;
    Ok((ring, places, chunks))
}

/// A ring with what the kernel has of: completions that run only when this thread asks (6.1), or at
/// least without interrupting it (5.19), and submission that goes on after an entry that fails
/// (5.18). It takes nothing yet.
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

/// All that is allowed. No flag but the required one is: no links, no drains, no buffers of the
/// kernel's choice.
fn restrictions() -> Vec<Restriction> {
    let operations = OPERATIONS.into_iter().map(Restriction::sqe_op);
    let registrations = REGISTRATIONS.into_iter().map(Restriction::register_op);
    let fixed_file = Restriction::sqe_flags_required(squeue::Flags::FIXED_FILE.bits());
    operations.chain(registrations).chain([fixed_file]).collect()
}
