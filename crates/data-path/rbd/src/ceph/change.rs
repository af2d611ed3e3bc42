//! A change of one object that the cluster makes whole or not at all.

use std::ffi::c_char;

use rustix::io::Errno;

use super::library::{Functions, Handle};
use super::object::Pool;
use super::{c_string, checked};

/// `LIBRADOS_CMPXATTR_OP_EQ`.
const EQUAL: u8 = 1;
/// `LIBRADOS_CREATE_EXCLUSIVE`.
const EXCLUSIVE: i32 = 1;

/// A part of a [`Change`]. Conditions come first: if one fails, nothing changes.
#[derive(Clone, Debug)]
pub enum Step<'a> {
    /// Makes the object; fails with `EEXIST` if it exists.
    Create,
    /// Fails with `ECANCELED` if an attribute has another value.
    AttributeIs(&'a str, &'a [u8]),
    /// Sets an attribute.
    SetAttribute(&'a str, &'a [u8]),
    /// Sets an entry of the object's map.
    SetEntry(&'a str, &'a [u8]),
    /// Removes an entry of the object's map.
    RemoveEntry(&'a str),
    /// Removes the object.
    Remove,
}

/// Steps on one object, made at once.
#[derive(Clone, Debug, Default)]
pub struct Change<'a>(pub Vec<Step<'a>>);

/// A write operation of librados; the borrowed texts of its steps must outlive it.
struct Operation {
    functions: &'static Functions,
    handle: Handle,
}

impl Drop for Operation {
    fn drop(&mut self) {
        // SAFETY: it is released once.
        unsafe { (self.functions.rados_release_write_op)(self.handle) };
    }
}

impl Pool {
    /// Makes a change, durably.
    pub fn change(&self, object: &str, change: &Change<'_>) -> Result<(), Errno> {
        let functions = self.functions();
        // SAFETY: takes no arguments.
        let handle = unsafe { (functions.rados_create_write_op)() };
        let operation = Operation { functions, handle };
        for step in &change.0 {
            self.add(&operation, step)?;
        }
        let object = c_string(object)?;
        // SAFETY: the operation and the pool are valid; no time is given.
        let operated = unsafe {
            (functions.rados_write_op_operate)(
                handle,
                self.handle(),
                object.as_ptr(),
                std::ptr::null_mut(),
                0,
            )
        };
        checked(operated).map(drop)
    }

    /// Adds a step. The library copies what it is given.
    fn add(&self, operation: &Operation, step: &Step<'_>) -> Result<(), Errno> {
        let Operation { functions, handle } = operation;
        let bytes = |value: &[u8]| -> *const c_char { value.as_ptr().cast() };
        match step {
            Step::Create => {
                // SAFETY: the operation is valid; the category is not used any more.
                unsafe { (functions.rados_write_op_create)(*handle, EXCLUSIVE, std::ptr::null()) };
            }
            Step::AttributeIs(name, value) => {
                let name = c_string(name)?;
                // SAFETY: the value has that length; both are copied.
                unsafe {
                    (functions.rados_write_op_cmpxattr)(
                        *handle,
                        name.as_ptr(),
                        EQUAL,
                        bytes(value),
                        value.len(),
                    );
                }
            }
            Step::SetAttribute(name, value) => {
                let name = c_string(name)?;
                // SAFETY: as above.
                unsafe {
                    (functions.rados_write_op_setxattr)(*handle, name.as_ptr(), bytes(value), value.len());
                }
            }
            Step::SetEntry(key, value) => {
                let (keys, values) = ([bytes(key.as_bytes())], [bytes(value)]);
                // SAFETY: one key and one value of these lengths; both are copied.
                unsafe {
                    (functions.rados_write_op_omap_set2)(
                        *handle,
                        keys.as_ptr(),
                        values.as_ptr(),
                        &key.len(),
                        &value.len(),
                        1,
                    );
                }
            }
            Step::RemoveEntry(key) => {
                let keys = [bytes(key.as_bytes())];
                // SAFETY: one key of this length, which is copied.
                unsafe { (functions.rados_write_op_omap_rm_keys2)(*handle, keys.as_ptr(), &key.len(), 1) };
            }
            Step::Remove => {
                // SAFETY: the operation is valid.
                unsafe { (functions.rados_write_op_remove)(*handle) };
            }
        }
        Ok(())
    }
}
