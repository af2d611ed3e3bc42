//! The NUMA nodes that a thread's memory comes from (set_mempolicy(2)).

use std::ptr;

use rustix::io::Errno;

/// The most nodes that a kernel can be built for.
const NODES_MAX: usize = 1024;
const WORDS: usize = NODES_MAX / u64::BITS as usize;

/// Several nodes, the nearest first (linux/mempolicy.h).
const MPOL_PREFERRED_MANY: libc::c_int = 5;

/// Whether the calling thread has no memory policy of its own: its memory then comes from the node
/// that it runs on.
///
/// # Errors
/// If the kernel fails the call, or a sandbox denies it.
pub fn is_default() -> Result<bool, Errno> {
    let mut mode: libc::c_int = 0;
    // SAFETY: the kernel writes one int at the first address, which is that of an int; without
    // flags and without a mask, it accesses no other memory.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            ptr::from_mut(&mut mode),
            ptr::null_mut::<u64>(),
            0_usize,
            ptr::null_mut::<libc::c_void>(),
            0_usize,
        )
    };
    answer(returned).map(|()| mode == libc::MPOL_DEFAULT)
}

/// Sets the nodes for memory that the calling thread, and the threads that it makes from now on,
/// touch first: from the nearest of these nodes that has free memory, and then from the others.
///
/// # Errors
/// For a node that does not exist or is not allowed; for several nodes on a kernel before 5.15.
pub fn prefer(nodes: impl IntoIterator<Item = u32>) -> Result<(), Errno> {
    let (mut mask, mut count) = ([0_u64; WORDS], 0);
    for node in nodes {
        let word = mask.get_mut(node as usize / 64).ok_or(Errno::INVAL)?;
        *word |= 1 << (node % 64);
        count += 1;
    }
    // For one node the older mode is equivalent, and every kernel supports it.
    let mode = if count == 1 { libc::MPOL_PREFERRED } else { MPOL_PREFERRED_MANY };
    // SAFETY: the kernel reads one bit less than the given count, which is the length of the mask.
    // A policy changes where memory comes from, and not its content.
    let returned =
        unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, ptr::from_ref(&mask), NODES_MAX + 1) };
    answer(returned)
}

fn answer(returned: libc::c_long) -> Result<(), Errno> {
    match returned {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_policy_is_a_threads_own_and_that_of_those_that_it_makes() {
        let Ok(true) = is_default() else {
            eprintln!("not shown: this process may not choose, or somebody has chosen for it");
            return;
        };
        thread::spawn(|| {
            prefer([0]).unwrap();
            assert_eq!(is_default(), Ok(false));
            assert_eq!(thread::spawn(is_default).join().unwrap(), Ok(false));
        })
        .join()
        .unwrap();
        assert_eq!(is_default(), Ok(true));
    }

    #[test]
    fn nodes_that_no_kernel_has_are_refused() {
        assert_eq!(prefer([NODES_MAX as u32]), Err(Errno::INVAL));
    }
}
