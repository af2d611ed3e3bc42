//! System calls with any number and arguments, as an attacker makes them.

use libc::c_long;
use rustix::io::Errno;

/// Makes a system call. Only probes do, each of which is a process of its own that ends after it.
pub fn system_call(number: c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: no library offers these calls safely, which is why they are tried. The callers pass
    // numbers, null, and addresses of memory that they own and that outlives the call; the only
    // memory that a call may change is a fresh mapping that nothing else uses, or an array of the
    // caller's.
    let answer = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if answer < 0 {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or_default();
        return Err(Errno::from_raw_os_error(errno));
    }
    Ok(answer.cast_unsigned() as usize)
}
