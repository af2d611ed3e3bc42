//! Images, and the asynchronous requests to them.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr;

use rustix::io::Errno;
use strongroom_types::Extent;

use super::change::{Change, Step};
use super::library::{Functions, Handle};
use super::object::Pool;
use super::{c_string, checked, checked_size};

/// `RBD_IMAGE_OPTION_FEATURES`, `_ORDER`, `_DATA_POOL`.
const OPTION_FEATURES: c_int = 1;
const OPTION_ORDER: c_int = 2;
const OPTION_DATA_POOL: c_int = 10;
/// Layering, exclusive lock, object map and fast diff: the map tells where a layer has content, and
/// needs the lock.
const FEATURES: u64 = 1 | 4 | 8 | 16;
/// The size of an image's objects, as a power of two.
const ORDER: u64 = 22;
/// Bytes of an object of an image.
pub const OBJECT_BYTES: u64 = 1 << ORDER;
/// `RBD_LOCK_MODE_EXCLUSIVE`.
const LOCK_EXCLUSIVE: u32 = 0;

/// What a new image is like.
#[derive(Clone, Copy, Debug)]
pub struct ImageShape<'a> {
    /// The pool of its data, if that is another one than that of its name, such as an
    /// erasure-coded one.
    pub data_pool: Option<&'a str>,
}

/// What an image is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageAccess {
    /// Reading only.
    Read,
    /// Reading and writing.
    Write,
}

/// An open image. It is closed when it is dropped; requests under way are waited for then.
pub struct Image {
    handle: Handle,
    pool: Pool,
}

// SAFETY: an image of librbd may be used by several threads at once.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

/// Makes an image of `bytes` bytes.
pub fn create_image(pool: &Pool, name: &str, bytes: u64, shape: ImageShape<'_>) -> Result<(), Errno> {
    let functions = pool.functions();
    let name = c_string(name)?;
    let mut options = ptr::null_mut();
    // SAFETY: the call sets `options`, which is released below.
    unsafe { (functions.rbd_image_options_create)(&mut options) };
    let set = || {
        // SAFETY: the options are valid.
        unsafe {
            checked((functions.rbd_image_options_set_uint64)(options, OPTION_FEATURES, FEATURES))?;
            checked((functions.rbd_image_options_set_uint64)(options, OPTION_ORDER, ORDER))?;
        }
        if let Some(data_pool) = shape.data_pool {
            let data_pool = c_string(data_pool)?;
            // SAFETY: as above; the text is copied.
            checked(unsafe {
                (functions.rbd_image_options_set_string)(options, OPTION_DATA_POOL, data_pool.as_ptr())
            })?;
        }
        // SAFETY: pool and options are valid.
        checked(unsafe { (functions.rbd_create4)(pool.handle(), name.as_ptr(), bytes, options) })
    };
    let made = set();
    // SAFETY: the last use.
    unsafe { (functions.rbd_image_options_destroy)(options) };
    made.map(drop)
}

/// Makes a namespace of a pool known to librbd, which makes no images in others. `pool` is the
/// pool's default namespace. A user who may use only his namespace cannot make it, and has it from
/// the cluster's administrator.
pub fn make_namespace(pool: &Pool, name: &str) -> Result<(), Errno> {
    let name = c_string(name)?;
    // SAFETY: the pool is valid.
    match checked(unsafe { (pool.functions().rbd_namespace_create)(pool.handle(), name.as_ptr()) }) {
        Ok(_) | Err(Errno::EXIST | Errno::PERM | Errno::ACCESS) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Makes the object in which librbd notes the images that it removes. A pool that is full makes no
/// object any more, and none of its images could be removed then. In one that is full already, it
/// is not made.
pub fn make_trash(pool: &Pool) -> Result<(), Errno> {
    match pool.change("rbd_trash", &Change(vec![Step::Create])) {
        Ok(()) | Err(Errno::EXIST | Errno::NOSPC | Errno::DQUOT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Removes an image with its data. `BUSY` while it is open for writing.
pub fn remove_image(pool: &Pool, name: &str) -> Result<(), Errno> {
    let named = c_string(name)?;
    // SAFETY: the pool is valid.
    match checked(unsafe { (pool.functions().rbd_remove)(pool.handle(), named.as_ptr()) }) {
        // It says so too if it cannot note the image in a full pool.
        Err(Errno::NOENT) if pool.length(&format!("rbd_id.{name}")).is_ok() => Err(Errno::NOSPC),
        removed => removed.map(drop),
    }
}

impl Image {
    /// Opens an image.
    pub fn open(pool: &Pool, name: &str, access: ImageAccess) -> Result<Self, Errno> {
        let functions = pool.functions();
        let name = c_string(name)?;
        let mut handle = ptr::null_mut();
        let open = match access {
            ImageAccess::Read => functions.rbd_open_read_only,
            ImageAccess::Write => functions.rbd_open,
        };
        // SAFETY: the pool is valid and the call sets `handle`; no snapshot is named.
        checked(unsafe { open(pool.handle(), name.as_ptr(), &mut handle, ptr::null()) })?;
        Ok(Self { handle, pool: pool.clone() })
    }

    pub(super) fn functions(&self) -> &'static Functions {
        self.pool.functions()
    }

    /// Takes the image's lock and keeps it: librbd does not hand it over when another asks.
    pub fn lock(&self) -> Result<(), Errno> {
        // SAFETY: the image is open.
        checked(unsafe { (self.functions().rbd_lock_acquire)(self.handle, LOCK_EXCLUSIVE) }).map(drop)
    }

    /// Its size in bytes.
    pub fn length(&self) -> Result<u64, Errno> {
        let mut bytes = 0;
        // SAFETY: the call sets `bytes`.
        checked(unsafe { (self.functions().rbd_get_size)(self.handle, &mut bytes) })?;
        Ok(bytes)
    }

    /// Changes its size.
    pub fn resize(&self, bytes: u64) -> Result<(), Errno> {
        // SAFETY: the image is open.
        checked(unsafe { (self.functions().rbd_resize)(self.handle, bytes) }).map(drop)
    }

    /// Reads from `offset` on. Returns how many bytes there were before the image's end.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        let left = self.length()?.saturating_sub(offset).min(into.len() as u64) as usize;
        let into = &mut into[..left];
        if into.is_empty() {
            return Ok(0);
        }
        // SAFETY: the buffer has the length that is given.
        checked_size(unsafe {
            (self.functions().rbd_read)(self.handle, offset, into.len(), into.as_mut_ptr().cast())
        })
    }

    /// Writes all of `from` at `offset`, which must lie within the image.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), Errno> {
        // SAFETY: the buffer has the length that is given.
        let written = checked_size(unsafe {
            (self.functions().rbd_write)(self.handle, offset, from.len(), from.as_ptr().cast())
        })?;
        if written == from.len() { Ok(()) } else { Err(Errno::IO) }
    }

    /// Waits for the writes under way.
    pub fn flush(&self) -> Result<(), Errno> {
        // SAFETY: the image is open.
        checked(unsafe { (self.functions().rbd_flush)(self.handle) }).map(drop)
    }

    /// The first run of content at or after `at`, before `end`. It is known by the object, so it
    /// may contain zeroes. `None` if there is none.
    pub fn next_content(&self, at: u64, end: u64) -> Result<Option<Extent>, Errno> {
        let mut first: Option<Extent> = None;
        self.each_content(at, end, &mut |content| match first {
            None => {
                first = Some(content);
                true
            }
            Some(known) if known.end() == content.offset() => {
                first = Some(Extent::between(known.offset(), content.end()));
                true
            }
            Some(_) => false,
        })?;
        Ok(first)
    }

    /// Bytes of the objects that have content.
    pub fn content_bytes(&self) -> Result<u64, Errno> {
        let mut bytes = 0;
        self.each_content(0, self.length()?, &mut |content| {
            bytes += content.length();
            true
        })?;
        Ok(bytes)
    }

    /// Passes each extent with content on, in order, until `note` wants no more.
    fn each_content(&self, at: u64, end: u64, note: &mut dyn FnMut(Extent) -> bool) -> Result<(), Errno> {
        if at >= end {
            return Ok(());
        }
        let mut noting = Noting { note, is_enough: false };
        let argument = ptr::from_mut(&mut noting).cast::<c_void>();
        // SAFETY: `noting` outlives the call, and the callback is only called during it.
        let listed = unsafe {
            (self.functions().rbd_diff_iterate2)(
                self.handle,
                ptr::null(),
                at,
                end - at,
                0,
                1,
                note_content,
                argument,
            )
        };
        match checked(listed) {
            // The listing is ended by an error of the callback.
            Err(_) if noting.is_enough => Ok(()),
            listed => listed.map(drop),
        }
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: the last use.
        unsafe { (self.functions().rbd_close)(self.handle) };
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Image")
    }
}

/// What the callback of a listing needs.
struct Noting<'a> {
    note: &'a mut dyn FnMut(Extent) -> bool,
    is_enough: bool,
}

/// Takes one extent of a listing.
///
/// # Safety
/// `argument` must point to a [`Noting`].
unsafe extern "C" fn note_content(offset: u64, length: usize, exists: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: as the caller promises.
    let noting = unsafe { &mut *argument.cast::<Noting<'_>>() };
    let end = offset.saturating_add(length as u64);
    if exists == 0 || (noting.note)(Extent::between(offset, end)) {
        return 0;
    }
    noting.is_enough = true;
    -Errno::CANCELED.raw_os_error()
}
