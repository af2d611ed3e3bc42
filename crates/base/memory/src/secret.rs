//! The only type that holds plaintext keys, passphrases and the secrets that they are derived from.
//!
//! A [`SecretBytes`] has its own pages between two guard pages, so that
//! - it is locked into memory and never swapped (as far as `RLIMIT_MEMLOCK` allows, see
//!   [`SecretBytes::is_locked`]),
//! - it is excluded from core dumps, and a forked child finds zeroes in its place,
//! - a read or write past either end of the pages faults,
//! - it is wiped before its pages return to the kernel or are used for the next secret.
//!
//! Making such pages takes six system calls, so a few wiped ones are kept for later secrets, still
//! guarded and locked.
//!
//! It cannot be printed or cloned by accident, and comparisons take a time that does not depend on
//! its content. It cannot protect copies that a caller makes of [`SecretBytes::expose`]; the caller
//! must wipe them.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};

use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use subtle::{Choice, ConstantTimeEq};
use zeroize::Zeroize;

/// The greatest length of a secret, in bytes.
///
/// The longest secrets are passphrases and wrapped keys, far below this; the limit prevents a
/// length from outside from locking an arbitrary share of memory.
pub const SECRET_MAX_BYTES: usize = 4096;

/// The most pages that are kept for later secrets: as many as a key server needs for the requests
/// that it serves at once. They count towards `RLIMIT_MEMLOCK`.
const SPARE_PAGES_MAX: usize = 64;

/// Wiped pages without a secret, each with its guards.
static SPARE_PAGES: Mutex<Vec<GuardedPages>> = Mutex::new(Vec::new());

/// The reasons why a secret cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The requested length is above [`SECRET_MAX_BYTES`].
    #[error("a secret of {length_bytes} bytes is longer than the {SECRET_MAX_BYTES} bytes that one may have")]
    TooLong {
        /// The requested length.
        length_bytes: usize,
    },
    /// The kernel provided no memory that is private and excluded from dumps.
    #[error("no protected memory for a secret: {0}")]
    Memory(#[source] io::Error),
    /// The kernel's random source failed.
    #[error("the kernel's random source failed: {0}")]
    Random(#[source] io::Error),
}

/// Secret bytes in locked, guarded memory that is not dumped and is wiped on drop. See the
/// [module](self).
///
/// The content starts on a page boundary. Comparing two secrets of one length takes constant time;
/// the length itself is not secret.
pub struct SecretBytes {
    pages: ManuallyDrop<GuardedPages>,
    length_bytes: usize,
}

impl SecretBytes {
    /// A secret of `length_bytes` zeroes, to be filled through [`expose_mut`](Self::expose_mut).
    ///
    /// # Errors
    /// [`SecretError::TooLong`] above [`SECRET_MAX_BYTES`], [`SecretError::Memory`] if the kernel
    /// refuses the pages.
    pub fn zeroed(length_bytes: usize) -> Result<Self, SecretError> {
        if length_bytes > SECRET_MAX_BYTES {
            return Err(SecretError::TooLong { length_bytes });
        }
        let pages =
            GuardedPages::spare_or_new(length_bytes).map_err(|errno| SecretError::Memory(errno.into()))?;
        Ok(Self { pages: ManuallyDrop::new(pages), length_bytes })
    }

    /// A secret of `length_bytes` from the kernel's random source (`getrandom(2)`).
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed), and [`SecretError::Random`].
    pub fn random(length_bytes: usize) -> Result<Self, SecretError> {
        let mut secret = Self::zeroed(length_bytes)?;
        getrandom::fill(secret.expose_mut()).map_err(|error| SecretError::Random(io::Error::other(error)))?;
        Ok(secret)
    }

    /// Moves a secret out of ordinary memory. `source` is wiped whether or not this succeeds.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed).
    pub fn from_slice_and_wipe(source: &mut [u8]) -> Result<Self, SecretError> {
        let secret = Self::zeroed(source.len()).map(|mut secret| {
            secret.expose_mut().copy_from_slice(source);
            secret
        });
        source.zeroize();
        secret
    }

    /// Makes a copy in its own pages. This is explicit, because every copy of a key must be
    /// accounted for.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed).
    pub fn duplicate(&self) -> Result<Self, SecretError> {
        let mut copy = Self::zeroed(self.length_bytes)?;
        copy.expose_mut().copy_from_slice(self.expose());
        Ok(copy)
    }

    /// The secret itself. Never log, format or copy it into memory that is not wiped.
    pub fn expose(&self) -> &[u8] {
        // SAFETY: `pages.base` starts at least `length_bytes` readable, initialised (zero-filled or
        // written) bytes that live as long as `self`, and `&self` keeps `expose_mut` away
        // meanwhile.
        unsafe { std::slice::from_raw_parts(self.pages.base.as_ptr(), self.length_bytes) }
    }

    /// The secret itself, mutably.
    pub fn expose_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `expose`, writable too, and `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.pages.base.as_ptr(), self.length_bytes) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length_bytes
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.length_bytes == 0
    }

    /// Whether the kernel locked the pages into memory. If not, `RLIMIT_MEMLOCK` is exhausted, and
    /// the secret works but may be swapped out; a program should warn once.
    pub fn is_locked(&self) -> bool {
        self.pages.locked
    }

    /// Overwrites the bytes with zeroes in a way that the compiler cannot remove.
    fn wipe(&mut self) {
        self.expose_mut().zeroize();
    }
}

impl Drop for SecretBytes {
    fn drop(&mut self) {
        self.wipe();
        // This secret owns the pages until here.
        #[cfg(test)]
        tests::record_content_at_release(self.expose());
        // SAFETY: `self` ends here, so the field is not taken or dropped again.
        unsafe { ManuallyDrop::take(&mut self.pages) }.keep();
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SecretBytes({} bytes, redacted)", self.length_bytes)
    }
}

impl ConstantTimeEq for SecretBytes {
    fn ct_eq(&self, other: &Self) -> Choice {
        self.expose().ct_eq(other.expose())
    }
}

impl PartialEq for SecretBytes {
    fn eq(&self, other: &Self) -> bool {
        self.ct_eq(other).into()
    }
}

impl Eq for SecretBytes {}

/// Private pages with an inaccessible page on either side, unmapped on drop.
struct GuardedPages {
    /// First byte after the lower guard page; zero-filled at first.
    base: NonNull<u8>,
    /// A multiple of the page size, at least one page, without the guard pages.
    usable_bytes: usize,
    locked: bool,
}

// SAFETY: the pages belong to this value alone, wherever it is.
unsafe impl Send for GuardedPages {}
// SAFETY: the value exposes only its address; `SecretBytes` reads through `&` and writes through
// `&mut`.
unsafe impl Sync for GuardedPages {}

impl GuardedPages {
    /// Zeroed pages for `length_bytes`: kept ones, or new ones.
    fn spare_or_new(length_bytes: usize) -> rustix::io::Result<Self> {
        let spare = (length_bytes <= rustix::param::page_size()).then(|| SPARE_PAGES.lock().pop());
        spare.flatten().map_or_else(|| Self::map(length_bytes), Ok)
    }

    /// Keeps wiped pages for the next secret if they are as good as new ones, or unmaps them.
    fn keep(self) {
        if self.locked && self.usable_bytes == rustix::param::page_size() {
            let mut spare = SPARE_PAGES.lock();
            if spare.len() < SPARE_PAGES_MAX {
                spare.push(self);
            }
        }
    }

    fn map(length_bytes: usize) -> rustix::io::Result<Self> {
        let page_bytes = rustix::param::page_size();
        let usable_bytes = length_bytes.next_multiple_of(page_bytes).max(page_bytes);
        // SAFETY: a new private mapping at an address of the kernel's choice touches no existing
        // memory.
        let lower_guard = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                usable_bytes + 2 * page_bytes,
                ProtFlags::empty(),
                MapFlags::PRIVATE,
            )
        }?;
        // SAFETY: one page into the mapping just made, so inside it and not null.
        let base = unsafe { NonNull::new_unchecked(lower_guard.cast::<u8>().add(page_bytes)) };
        // From here on drop unmaps them, even if a step below fails.
        let mut pages = Self { base, usable_bytes, locked: false };
        pages.protect()?;
        Ok(pages)
    }

    /// Makes the inner pages usable: first excluded from dumps, then writable, so that no secret is
    /// in them before they are protected.
    fn protect(&mut self) -> rustix::io::Result<()> {
        let (start, length_bytes) = (self.base.as_ptr().cast(), self.usable_bytes);
        // SAFETY: the calls name exactly the inner pages of our own mapping, to which there are no
        // references yet.
        unsafe {
            rustix::mm::madvise(start, length_bytes, Advice::LinuxDontDump)?;
            // Best effort, in addition to the rule never to fork without exec.
            let _ = rustix::mm::madvise(start, length_bytes, Advice::LinuxWipeOnFork);
            rustix::mm::mprotect(start, length_bytes, MprotectFlags::READ | MprotectFlags::WRITE)?;
            self.locked = rustix::mm::mlock(start, length_bytes).is_ok();
        }
        Ok(())
    }
}

impl Drop for GuardedPages {
    fn drop(&mut self) {
        let page_bytes = rustix::param::page_size();
        // SAFETY: exactly the mapping that `map` made, including the guard pages, and there are no
        // references to it any more. munmap fails only for arguments that name no mapping, which
        // these do.
        let _ = unsafe {
            rustix::mm::munmap(self.base.as_ptr().sub(page_bytes).cast(), self.usable_bytes + 2 * page_bytes)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    thread_local! {
        static CONTENT_AT_RELEASE: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
    }

    pub(super) fn record_content_at_release(content: &[u8]) {
        CONTENT_AT_RELEASE.with_borrow_mut(|last| *last = Some(content.to_vec()));
    }

    /// The block of /proc/self/smaps whose mapping starts at `address`.
    fn smaps_entry(address: *const u8) -> String {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", address.addr());
        let entry: Vec<&str> = smaps
            .lines()
            .skip_while(|line| !line.starts_with(&start))
            .take_while(|line| line.starts_with(&start) || !line.split(' ').next().unwrap().contains('-'))
            .collect();
        assert!(!entry.is_empty(), "no mapping starts at {address:?}");
        entry.join("\n")
    }

    fn flags_of(entry: &str) -> Vec<&str> {
        entry.lines().find_map(|line| line.strip_prefix("VmFlags:")).unwrap().split_whitespace().collect()
    }

    #[test]
    fn debug_tells_the_length_only() {
        let secret = SecretBytes::from_slice_and_wipe(&mut b"correct horse".to_vec()).unwrap();
        assert_eq!(format!("{secret:?}"), "SecretBytes(13 bytes, redacted)");
        assert_eq!(format!("{secret:#?}"), "SecretBytes(13 bytes, redacted)");
    }

    #[test]
    fn the_source_of_a_secret_is_wiped() {
        let mut source = [0xa5; 64];
        let secret = SecretBytes::from_slice_and_wipe(&mut source).unwrap();
        assert_eq!(source, [0; 64]);
        assert_eq!(secret.expose(), [0xa5; 64]);

        let mut too_long = vec![0xa5; SECRET_MAX_BYTES + 1];
        let refused = SecretBytes::from_slice_and_wipe(&mut too_long).unwrap_err();
        assert!(matches!(refused, SecretError::TooLong { length_bytes: 4097 }));
        assert!(too_long.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_dropped_secret_is_zero_before_its_pages_are_given_up() {
        let secret = SecretBytes::from_slice_and_wipe(&mut [0x5a; 48]).unwrap();
        let copy = secret.duplicate().unwrap();
        drop(secret);
        assert_eq!(CONTENT_AT_RELEASE.take(), Some(vec![0; 48]));
        assert_eq!(copy.expose(), [0x5a; 48]);
    }

    #[test]
    fn pages_are_locked_undumpable_and_wiped_on_fork() {
        let secret = SecretBytes::random(32).unwrap();
        let entry = smaps_entry(secret.expose().as_ptr());
        let flags = flags_of(&entry);
        assert!(flags.contains(&"dd"), "in dumps: {flags:?}");
        assert!(flags.contains(&"wf"), "kept on fork: {flags:?}");
        assert_eq!(flags.contains(&"lo"), secret.is_locked(), "{flags:?}");
        assert!(secret.is_locked(), "RLIMIT_MEMLOCK is too small to run this test");
    }

    #[test]
    fn a_guard_page_lies_on_either_side() {
        let secret = SecretBytes::random(100).unwrap();
        let page_bytes = rustix::param::page_size();
        let base = secret.expose().as_ptr();
        let entry = smaps_entry(base);
        let (_, end) = entry.split(' ').next().unwrap().split_once('-').unwrap();
        assert_eq!(usize::from_str_radix(end, 16).unwrap(), base.addr() + page_bytes);
        assert!(entry.split(' ').nth(1).unwrap().starts_with("rw-p"));

        // A neighbouring secret's guard may have merged with ours, so look for the mapping that
        // contains the address.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        for guarded in [base.addr() - 1, base.addr() + page_bytes] {
            let covering = maps.lines().find(|line| {
                let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
                (usize::from_str_radix(start, 16).unwrap()..usize::from_str_radix(end, 16).unwrap())
                    .contains(&guarded)
            });
            assert!(covering.unwrap().contains(" ---p "), "{covering:?}");
        }
    }

    #[test]
    fn random_secrets_differ_and_equality_compares_content_and_length() {
        let (one, other) = (SecretBytes::random(32).unwrap(), SecretBytes::random(32).unwrap());
        assert_ne!(one, other);
        assert_eq!(one, one.duplicate().unwrap());
        assert_ne!(SecretBytes::zeroed(16).unwrap(), SecretBytes::zeroed(17).unwrap());
    }

    #[test]
    fn lengths_from_nothing_to_the_limit() {
        assert!(SecretBytes::zeroed(0).unwrap().is_empty());
        assert_eq!(SecretBytes::random(SECRET_MAX_BYTES).unwrap().len(), SECRET_MAX_BYTES);
        assert!(matches!(SecretBytes::random(usize::MAX), Err(SecretError::TooLong { .. })));
    }

    #[test]
    fn secrets_can_be_shared_and_sent() {
        fn assert_send_and_sync<T: Send + Sync>() {}
        assert_send_and_sync::<SecretBytes>();
    }
}
