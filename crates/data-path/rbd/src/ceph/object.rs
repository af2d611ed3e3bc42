//! A pool's objects: bytes, attributes, entries of their maps, locks.

use std::collections::BTreeMap;
use std::ffi::c_char;
use std::ptr;
use std::sync::Arc;

use rustix::io::Errno;

use super::cluster::{Cluster, Connection};
use super::library::{Functions, Handle};
use super::{c_string, checked, checked_size};

/// The name of our lock on an object.
const LOCK: &str = "strongroom";
/// `LIBRADOS_LOCK_FLAG_MAY_RENEW`: the holder may take it again, as the other kind too if it is the
/// only one.
const MAY_RENEW: u8 = 1;
/// The most entries that are read at once.
const ENTRIES_AT_ONCE: u64 = 1000;
/// The longest attribute that is read.
const ATTRIBUTE_BYTES_MAX: usize = 256;
/// Room for the names of a lock's holders.
const LOCKERS_BYTES: usize = 64 << 10;

/// Whether a lock can have several holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// A single holder.
    Exclusive,
    /// Any number of holders.
    Shared,
}

/// A holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locker {
    /// The instance, as the cluster names it: `client.4242`.
    pub client: String,
    /// The holder's own name for itself.
    pub cookie: String,
    /// The instance's address, by which it is fenced.
    pub address: String,
}

/// A namespace of a pool. Clones share it.
#[derive(Clone)]
pub struct Pool(Arc<OpenPool>);

struct OpenPool {
    handle: Handle,
    connection: Arc<Connection>,
}

// SAFETY: an I/O context may be used by several threads at once as long as none changes its
// settings, which only `Pool::open` does, before anybody else has it.
unsafe impl Send for OpenPool {}
// SAFETY: as above.
unsafe impl Sync for OpenPool {}

impl Drop for OpenPool {
    fn drop(&mut self) {
        // SAFETY: this is its last use: images keep the pool.
        unsafe { (self.connection.functions.rados_ioctx_destroy)(self.handle) };
    }
}

impl Pool {
    pub(super) fn open(cluster: &Cluster, name: &str, namespace: &str) -> Result<Self, Errno> {
        let connection = Arc::clone(&cluster.connection);
        let (name, namespace) = (c_string(name)?, c_string(namespace)?);
        let mut handle = ptr::null_mut();
        // SAFETY: the connection is valid, and the call fills `handle`.
        let created = unsafe {
            (connection.functions.rados_ioctx_create)(connection.handle, name.as_ptr(), &mut handle)
        };
        checked(created)?;
        // A full pool refuses a write, instead of keeping it until there is room.
        // SAFETY: nobody else has the new handle.
        unsafe {
            (connection.functions.rados_ioctx_set_namespace)(handle, namespace.as_ptr());
            (connection.functions.rados_set_pool_full_try)(handle);
        }
        Ok(Self(Arc::new(OpenPool { handle, connection })))
    }

    pub(super) fn functions(&self) -> &'static Functions {
        self.0.connection.functions
    }

    pub(super) fn handle(&self) -> Handle {
        self.0.handle
    }

    /// Reads an object's bytes from `offset` on. Returns how many there were.
    pub fn read(&self, object: &str, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        let object = c_string(object)?;
        // SAFETY: the buffer has the length that is given.
        let read = unsafe {
            let bytes = into.as_mut_ptr().cast();
            (self.functions().rados_read)(self.handle(), object.as_ptr(), bytes, into.len(), offset)
        };
        checked(read).map(|count| count as usize)
    }

    /// Writes an object's bytes at `offset`, durably; makes the object if it does not exist.
    pub fn write(&self, object: &str, offset: u64, from: &[u8]) -> Result<(), Errno> {
        let object = c_string(object)?;
        // SAFETY: the buffer has the length that is given.
        let written = unsafe {
            let bytes = from.as_ptr().cast();
            (self.functions().rados_write)(self.handle(), object.as_ptr(), bytes, from.len(), offset)
        };
        checked(written).map(drop)
    }

    /// Makes an object shorter or longer; the new part reads as zeroes.
    pub fn truncate(&self, object: &str, bytes: u64) -> Result<(), Errno> {
        let object = c_string(object)?;
        // SAFETY: the pool is valid.
        checked(unsafe { (self.functions().rados_trunc)(self.handle(), object.as_ptr(), bytes) }).map(drop)
    }

    /// An object's length in bytes.
    pub fn length(&self, object: &str) -> Result<u64, Errno> {
        let object = c_string(object)?;
        let (mut bytes, mut changed_at) = (0, 0);
        // SAFETY: the call fills both numbers.
        let found = unsafe {
            (self.functions().rados_stat)(self.handle(), object.as_ptr(), &mut bytes, &mut changed_at)
        };
        checked(found).map(|_| bytes)
    }

    /// An attribute of an object; `NODATA` if it has no such attribute.
    pub fn attribute(&self, object: &str, name: &str) -> Result<Vec<u8>, Errno> {
        let (object, name) = (c_string(object)?, c_string(name)?);
        let mut value = vec![0_u8; ATTRIBUTE_BYTES_MAX];
        // SAFETY: the buffer has the length that is given.
        let read = unsafe {
            let (bytes, length) = (value.as_mut_ptr().cast(), value.len());
            (self.functions().rados_getxattr)(self.handle(), object.as_ptr(), name.as_ptr(), bytes, length)
        };
        value.truncate(checked(read)? as usize);
        Ok(value)
    }

    /// The value of an entry of an object's map.
    pub fn entry(&self, object: &str, key: &str) -> Result<Option<Vec<u8>>, Errno> {
        let keys = [key.as_ptr().cast::<c_char>()];
        let entries = self.read_map(object, |functions, operation, found, result| {
            // SAFETY: one key of this length; the call sets the others when the operation is done.
            unsafe {
                (functions.rados_read_op_omap_get_vals_by_keys2)(
                    operation,
                    keys.as_ptr(),
                    1,
                    &key.len(),
                    found,
                    result,
                );
            }
        })?;
        Ok(entries.into_values().next())
    }

    /// All entries of an object's map, at most `most`; `TOOBIG` if there are more.
    pub fn entries(&self, object: &str, most: usize) -> Result<BTreeMap<String, Vec<u8>>, Errno> {
        let mut all = BTreeMap::<String, Vec<u8>>::new();
        loop {
            let after = c_string(all.last_key_value().map_or("", |(key, _)| key))?;
            let mut more = 0;
            let some = self.read_map(object, |functions, operation, found, result| {
                // SAFETY: the texts outlive the operation; the call sets the rest when it is done.
                unsafe {
                    (functions.rados_read_op_omap_get_vals2)(
                        operation,
                        after.as_ptr(),
                        c"".as_ptr(),
                        ENTRIES_AT_ONCE,
                        found,
                        &mut more,
                        result,
                    );
                }
            })?;
            let is_last = more == 0 || some.is_empty();
            all.extend(some);
            if all.len() > most {
                return Err(Errno::TOOBIG);
            }
            if is_last {
                return Ok(all);
            }
        }
    }

    fn read_map(
        &self,
        object: &str,
        ask: impl FnOnce(&Functions, Handle, *mut Handle, *mut i32),
    ) -> Result<BTreeMap<String, Vec<u8>>, Errno> {
        let functions = self.functions();
        let object = c_string(object)?;
        let (mut found, mut result) = (ptr::null_mut(), 0);
        // SAFETY: the operation is released below, after its last use.
        let operation = unsafe { (functions.rados_create_read_op)() };
        ask(functions, operation, &mut found, &mut result);
        // SAFETY: operation and pool are valid, and what `ask` was given lives until here.
        let operated =
            unsafe { (functions.rados_read_op_operate)(operation, self.handle(), object.as_ptr(), 0) };
        let outcome = checked(operated).and_then(|_| checked(result));
        let entries = match outcome {
            Ok(_) if !found.is_null() => collect(functions, found),
            _ => Ok(BTreeMap::new()),
        };
        if !found.is_null() {
            // SAFETY: the iterator was not released yet.
            unsafe { (functions.rados_omap_get_end)(found) };
        }
        // SAFETY: as above.
        unsafe { (functions.rados_release_read_op)(operation) };
        outcome?;
        entries
    }

    /// Takes our lock on an object, as `cookie`. `BUSY` if another has it.
    pub fn lock(&self, object: &str, kind: LockKind, cookie: &str) -> Result<(), Errno> {
        let (object, lock, cookie) = (c_string(object)?, c_string(LOCK)?, c_string(cookie)?);
        let (empty, no_end) = (c"".as_ptr(), ptr::null());
        let (functions, pool) = (self.functions(), self.handle());
        // SAFETY: all texts live through the call; a missing duration means without end.
        let locked = unsafe {
            match kind {
                LockKind::Exclusive => (functions.rados_lock_exclusive)(
                    pool,
                    object.as_ptr(),
                    lock.as_ptr(),
                    cookie.as_ptr(),
                    empty,
                    no_end,
                    MAY_RENEW,
                ),
                LockKind::Shared => (functions.rados_lock_shared)(
                    pool,
                    object.as_ptr(),
                    lock.as_ptr(),
                    cookie.as_ptr(),
                    empty,
                    empty,
                    no_end,
                    MAY_RENEW,
                ),
            }
        };
        checked(locked).map(drop)
    }

    /// Gives our lock on an object back.
    pub fn unlock(&self, object: &str, cookie: &str) -> Result<(), Errno> {
        let (object, lock, cookie) = (c_string(object)?, c_string(LOCK)?, c_string(cookie)?);
        // SAFETY: all texts live through the call.
        let unlocked = unsafe {
            (self.functions().rados_unlock)(self.handle(), object.as_ptr(), lock.as_ptr(), cookie.as_ptr())
        };
        checked(unlocked).map(drop)
    }

    /// Takes the lock from a holder that has been fenced.
    pub fn break_lock(&self, object: &str, holder: &Locker) -> Result<(), Errno> {
        let (object, lock) = (c_string(object)?, c_string(LOCK)?);
        let (client, cookie) = (c_string(&holder.client)?, c_string(&holder.cookie)?);
        // SAFETY: all texts live through the call.
        let broken = unsafe {
            (self.functions().rados_break_lock)(
                self.handle(),
                object.as_ptr(),
                lock.as_ptr(),
                client.as_ptr(),
                cookie.as_ptr(),
            )
        };
        checked(broken).map(drop)
    }

    /// The holders of our lock on an object.
    pub fn lockers(&self, object: &str) -> Result<Vec<Locker>, Errno> {
        let (object, lock) = (c_string(object)?, c_string(LOCK)?);
        let mut exclusive = 0;
        let mut texts = [(); 4].map(|()| vec![0_u8; LOCKERS_BYTES]);
        let mut lengths = [LOCKERS_BYTES; 4];
        let [tag, clients, cookies, addresses] = &mut texts;
        let [tag_length, clients_length, cookies_length, addresses_length] = &mut lengths;
        // SAFETY: each buffer has the length beside it.
        let listed = unsafe {
            (self.functions().rados_list_lockers)(
                self.handle(),
                object.as_ptr(),
                lock.as_ptr(),
                &mut exclusive,
                tag.as_mut_ptr().cast(),
                tag_length,
                clients.as_mut_ptr().cast(),
                clients_length,
                cookies.as_mut_ptr().cast(),
                cookies_length,
                addresses.as_mut_ptr().cast(),
                addresses_length,
            )
        };
        let count = match checked_size(listed) {
            // Nobody has ever locked it.
            Err(Errno::NOENT) => 0,
            count => count?,
        };
        let [_, clients, cookies, addresses] = texts.map(|text| strings(&text, count));
        let holders = clients.into_iter().zip(cookies).zip(addresses);
        Ok(holders
            .map(|((client, cookie), address)| Locker { client, cookie, address: bare(&address) })
            .collect())
    }
}

/// An address without the protocol that some versions put before it: instances are fenced without.
fn bare(address: &str) -> String {
    let protocols = ["v1:", "v2:", "any:"];
    let bare = protocols.iter().find_map(|protocol| address.strip_prefix(protocol));
    bare.unwrap_or(address).to_owned()
}

/// The first `count` strings of a buffer that has them one after the other.
fn strings(buffer: &[u8], count: usize) -> Vec<String> {
    let texts = buffer.split(|byte| *byte == 0).take(count);
    texts.map(|text| String::from_utf8_lossy(text).into_owned()).collect()
}

/// Reads what an iterator has.
fn collect(functions: &Functions, iterator: Handle) -> Result<BTreeMap<String, Vec<u8>>, Errno> {
    let mut entries = BTreeMap::new();
    loop {
        let (mut key, mut value) = (ptr::null_mut::<c_char>(), ptr::null_mut::<c_char>());
        let (mut key_length, mut value_length) = (0, 0);
        // SAFETY: the iterator is valid; the call sets the pointers, to memory of the iterator.
        let next = unsafe {
            (functions.rados_omap_get_next2)(
                iterator,
                &mut key,
                &mut value,
                &mut key_length,
                &mut value_length,
            )
        };
        checked(next)?;
        if key.is_null() {
            return Ok(entries);
        }
        // SAFETY: the memory has these lengths, and lives until the iterator is released.
        let (key, value) = unsafe {
            (
                std::slice::from_raw_parts(key.cast::<u8>(), key_length),
                if value.is_null() {
                    &[]
                } else {
                    std::slice::from_raw_parts(value.cast::<u8>(), value_length)
                },
            )
        };
        entries.insert(String::from_utf8_lossy(key).into_owned(), value.to_vec());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_read_one_after_the_other() {
        assert_eq!(strings(b"client.1\0client.2\0\0\0", 2), ["client.1", "client.2"]);
        assert!(strings(b"client.1\0", 0).is_empty());
    }
}
