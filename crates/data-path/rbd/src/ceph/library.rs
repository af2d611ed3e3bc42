//! The functions of librados and librbd that are used, loaded at run time.
//!
//! The program does not link Ceph: a host without Ceph needs neither library, and a build needs no
//! headers. The C interface of both libraries is stable; every function here is in those of Ceph
//! 16 and newer.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

use super::CephError;

pub(super) type Handle = *mut c_void;
pub(super) type Callback = unsafe extern "C" fn(completion: Handle, argument: *mut c_void);
pub(super) type DiffCallback = unsafe extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;

macro_rules! functions {
    ($($library:ident { $($name:ident($($argument:ty),*) $(-> $result:ty)?;)* })*) => {
        /// The functions, resolved once for the life of the process.
        pub(super) struct Functions {
            $($(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*)*
        }

        impl Functions {
            fn load() -> Result<Self, CephError> {
                $(let $library = open(names::$library)?;)*
                Ok(Self {
                    $($($name: {
                        // SAFETY: the type is that of the function in the library's C header.
                        let symbol = unsafe { $library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        *symbol.map_err(|error| CephError::Library {
                            library: names::$library,
                            reason: error.to_string(),
                        })?
                    },)*)*
                })
            }
        }
    };
}

#[expect(non_upper_case_globals, reason = "the names of the libraries' variables in the macro")]
mod names {
    pub(super) const rados: &str = "librados.so.2";
    pub(super) const rbd: &str = "librbd.so.1";
}

functions! {
    rados {
        rados_create2(*mut Handle, *const c_char, *const c_char, u64) -> c_int;
        rados_conf_read_file(Handle, *const c_char) -> c_int;
        rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
        rados_connect(Handle) -> c_int;
        rados_shutdown(Handle);
        rados_getaddrs(Handle, *mut *mut c_char) -> c_int;
        rados_buffer_free(*mut c_char);
        rados_mon_command(Handle, *const *const c_char, usize, *const c_char, usize, *mut *mut c_char, *mut usize, *mut *mut c_char, *mut usize) -> c_int;
        rados_wait_for_latest_osdmap(Handle) -> c_int;
        rados_blocklist_add(Handle, *mut c_char, u32) -> c_int;
        rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
        rados_ioctx_set_namespace(Handle, *const c_char);
        rados_set_pool_full_try(Handle);
        rados_ioctx_destroy(Handle);
        rados_read(Handle, *const c_char, *mut c_char, usize, u64) -> c_int;
        rados_write(Handle, *const c_char, *const c_char, usize, u64) -> c_int;
        rados_trunc(Handle, *const c_char, u64) -> c_int;
        rados_stat(Handle, *const c_char, *mut u64, *mut i64) -> c_int;
        rados_getxattr(Handle, *const c_char, *const c_char, *mut c_char, usize) -> c_int;
        rados_create_write_op() -> Handle;
        rados_release_write_op(Handle);
        rados_write_op_create(Handle, c_int, *const c_char);
        rados_write_op_cmpxattr(Handle, *const c_char, u8, *const c_char, usize);
        rados_write_op_setxattr(Handle, *const c_char, *const c_char, usize);
        rados_write_op_omap_set2(Handle, *const *const c_char, *const *const c_char, *const usize, *const usize, usize);
        rados_write_op_omap_rm_keys2(Handle, *const *const c_char, *const usize, usize);
        rados_write_op_remove(Handle);
        rados_write_op_operate(Handle, Handle, *const c_char, *mut i64, c_int) -> c_int;
        rados_create_read_op() -> Handle;
        rados_release_read_op(Handle);
        rados_read_op_omap_get_vals2(Handle, *const c_char, *const c_char, u64, *mut Handle, *mut u8, *mut c_int);
        rados_read_op_omap_get_vals_by_keys2(Handle, *const *const c_char, usize, *const usize, *mut Handle, *mut c_int);
        rados_read_op_operate(Handle, Handle, *const c_char, c_int) -> c_int;
        rados_omap_get_next2(Handle, *mut *mut c_char, *mut *mut c_char, *mut usize, *mut usize) -> c_int;
        rados_omap_get_end(Handle);
        rados_lock_exclusive(Handle, *const c_char, *const c_char, *const c_char, *const c_char, *const c_void, u8) -> c_int;
        rados_lock_shared(Handle, *const c_char, *const c_char, *const c_char, *const c_char, *const c_char, *const c_void, u8) -> c_int;
        rados_unlock(Handle, *const c_char, *const c_char, *const c_char) -> c_int;
        rados_break_lock(Handle, *const c_char, *const c_char, *const c_char, *const c_char) -> c_int;
        rados_list_lockers(Handle, *const c_char, *const c_char, *mut c_int, *mut c_char, *mut usize, *mut c_char, *mut usize, *mut c_char, *mut usize, *mut c_char, *mut usize) -> isize;
    }
    rbd {
        rbd_image_options_create(*mut Handle);
        rbd_image_options_destroy(Handle);
        rbd_image_options_set_uint64(Handle, c_int, u64) -> c_int;
        rbd_image_options_set_string(Handle, c_int, *const c_char) -> c_int;
        rbd_create4(Handle, *const c_char, u64, Handle) -> c_int;
        rbd_namespace_create(Handle, *const c_char) -> c_int;
        rbd_remove(Handle, *const c_char) -> c_int;
        rbd_open(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
        rbd_open_read_only(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
        rbd_close(Handle) -> c_int;
        rbd_get_size(Handle, *mut u64) -> c_int;
        rbd_resize(Handle, u64) -> c_int;
        rbd_lock_acquire(Handle, c_uint) -> c_int;
        rbd_read(Handle, u64, usize, *mut c_char) -> isize;
        rbd_write(Handle, u64, usize, *const c_char) -> isize;
        rbd_flush(Handle) -> c_int;
        rbd_diff_iterate2(Handle, *const c_char, u64, u64, u8, u8, DiffCallback, *mut c_void) -> c_int;
        rbd_aio_create_completion(*mut c_void, Callback, *mut Handle) -> c_int;
        rbd_aio_get_return_value(Handle) -> isize;
        rbd_aio_release(Handle);
        rbd_aio_read(Handle, u64, usize, *mut c_char, Handle) -> c_int;
        rbd_aio_write(Handle, u64, usize, *const c_char, Handle) -> c_int;
        rbd_aio_write_zeroes(Handle, u64, usize, Handle, c_int, c_int) -> c_int;
        rbd_aio_flush(Handle, Handle) -> c_int;
    }
}

fn open(name: &'static str) -> Result<&'static Library, CephError> {
    // SAFETY: the libraries' initialisers only set up their own state. They are never unloaded:
    // their threads run until the process ends.
    let opened = unsafe { Library::new(name) };
    opened
        .map(|library| &*Box::leak(Box::new(library)))
        .map_err(|error| CephError::Library { library: name, reason: error.to_string() })
}

/// Loads the libraries, for a process that may open no file later.
///
/// # Errors
/// If a library is not installed, or lacks a function.
pub fn load() -> Result<(), CephError> {
    functions().map(drop)
}

/// The functions.
///
/// # Errors
/// If a library is not installed, or lacks a function.
pub(super) fn functions() -> Result<&'static Functions, CephError> {
    static LOADED: OnceLock<Functions> = OnceLock::new();
    match LOADED.get() {
        Some(functions) => Ok(functions),
        None => {
            let functions = Functions::load()?;
            Ok(LOADED.get_or_init(|| functions))
        }
    }
}
