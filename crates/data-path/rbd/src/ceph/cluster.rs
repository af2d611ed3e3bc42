//! The connection to a cluster.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::path::PathBuf;
use std::sync::Arc;
use std::{ptr, slice};

use rustix::io::Errno;
use strongroom_memory::secret::SecretBytes;

use super::library::{Functions, Handle, functions};
use super::object::Pool;
use super::{CephError, c_string, checked};

/// How to reach a cluster, and as whom.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The cluster's configuration.
    pub conf: ClusterConf,
    /// The cephx user, such as `client.host1`.
    pub user: String,
}

/// Where a cluster's configuration and the user's key come from.
#[derive(Clone, Debug)]
pub enum ClusterConf {
    /// A file that names the keyring's file.
    File(PathBuf),
    /// The parameters themselves, and the key as a keyring has it. Nothing is read from files, and
    /// nothing is written to any.
    Given(Arc<GivenConf>),
}

/// A cluster's parameters and a user's key.
#[derive(Debug)]
pub struct GivenConf {
    /// The parameters, some of [`PARAMETERS`].
    pub parameters: BTreeMap<String, String>,
    /// The key, as text.
    pub key: SecretBytes,
}

/// The parameters that may be given: how the monitors are reached. None of them names a file.
pub const PARAMETERS: [&str; 7] = [
    "fsid",
    "mon_host",
    "auth_cluster_required",
    "auth_service_required",
    "auth_client_required",
    "ms_client_mode",
    "client_mount_timeout",
];

/// What keeps librados from files that it would read or write beside a given configuration.
const WITHOUT_FILES: [(&str, &str); 6] = [
    ("keyring", ""),
    ("log_file", ""),
    ("log_to_stderr", "false"),
    ("err_to_stderr", "false"),
    ("admin_socket", ""),
    ("pid_file", ""),
];

/// A connected client of a cluster. Clones share the connection, which is one *instance* to the
/// cluster: it is fenced as a whole.
#[derive(Clone)]
pub struct Cluster {
    pub(super) connection: Arc<Connection>,
}

pub(super) struct Connection {
    pub(super) functions: &'static Functions,
    pub(super) handle: Handle,
}

// SAFETY: a librados cluster handle may be used by several threads at once.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

/// The parameters that our correctness rests on, set after those of the configuration file.
const SETTINGS: [(&str, &str); 4] = [
    // A write that is acknowledged is on the cluster.
    ("rbd_cache", "false"),
    // Who takes an image's lock has our own lock, and has fenced its former holder for ten years.
    // librbd would fence it again, for an hour, which would be what counts from then on; and with
    // `rbd_blocklist_expire_seconds` its request is refused (16.2.15).
    ("rbd_blocklist_on_break_lock", "false"),
    // No limit. At one, librbd's threads wait, which every image's ends need too; our queues have
    // limits of their own (`queue.rs`).
    ("objecter_inflight_ops", "0"),
    ("objecter_inflight_op_bytes", "0"),
];

impl Cluster {
    /// Connects.
    ///
    /// # Errors
    /// If the libraries are missing, the configuration cannot be read, or no monitor admits the
    /// user within the cluster's `client_mount_timeout`.
    pub fn connect(options: &ClusterOptions) -> Result<Self, CephError> {
        let functions = functions()?;
        let named = |text| c_string(text).map_err(CephError::call("name the cluster"));
        let (cluster, user) = (named("ceph")?, named(&options.user)?);
        let mut handle = ptr::null_mut();
        // SAFETY: all pointers live through the call, which fills `handle`.
        let created = unsafe { (functions.rados_create2)(&mut handle, cluster.as_ptr(), user.as_ptr(), 0) };
        checked(created).map_err(CephError::call(format!("begin as the Ceph user {}", options.user)))?;
        // From here on the handle is shut down when it is dropped, connected or not.
        let connection = Connection { functions, handle };
        let place = match &options.conf {
            ClusterConf::File(path) => {
                let place = path.display().to_string();
                let path = named(&place)?;
                // SAFETY: as above.
                let read = unsafe { (functions.rados_conf_read_file)(handle, path.as_ptr()) };
                checked(read).map_err(CephError::call(format!("read {place}")))?;
                place
            }
            ClusterConf::Given(given) => {
                connection.set_given(given)?;
                given.parameters.get("mon_host").cloned().unwrap_or_default()
            }
        };
        for (name, value) in SETTINGS {
            connection.set(name, value)?;
        }
        // SAFETY: the handle is valid and not connected yet.
        let connected = unsafe { (functions.rados_connect)(handle) };
        checked(connected)
            .map_err(CephError::call(format!("connect to the cluster of {place} as {}", options.user)))?;
        Ok(Self { connection: Arc::new(connection) })
    }

    /// A namespace of a pool; the namespace `""` is the pool's default one.
    ///
    /// # Errors
    /// If there is no such pool.
    pub fn pool(&self, name: &str, namespace: &str) -> Result<Pool, CephError> {
        Pool::open(self, name, namespace).map_err(CephError::call(format!("open the pool {name}")))
    }

    /// Sends a command to the monitors. Returns their answer.
    pub(super) fn ask_monitors(&self, command: &CStr) -> Result<Vec<u8>, Errno> {
        let Connection { functions, handle } = &*self.connection;
        let (mut answer, mut message) = (ptr::null_mut::<c_char>(), ptr::null_mut::<c_char>());
        let (mut answer_bytes, mut message_bytes) = (0, 0);
        // SAFETY: one command, without input; the call sets the pointers and their lengths, to
        // memory that is released below, or leaves them as they are.
        let asked = unsafe {
            (functions.rados_mon_command)(
                *handle,
                &command.as_ptr(),
                1,
                ptr::null(),
                0,
                &mut answer,
                &mut answer_bytes,
                &mut message,
                &mut message_bytes,
            )
        };
        let text = match answer.is_null() {
            true => Vec::new(),
            // SAFETY: the memory has this length.
            false => unsafe { slice::from_raw_parts(answer.cast::<u8>(), answer_bytes) }.to_vec(),
        };
        for memory in [answer, message].into_iter().filter(|memory| !memory.is_null()) {
            // SAFETY: it is released once, after its last use.
            unsafe { (functions.rados_buffer_free)(memory) };
        }
        checked(asked).map(|_| text)
    }

    /// The address of this instance, by which others fence it.
    pub fn own_address(&self) -> Result<String, Errno> {
        let Connection { functions, handle } = &*self.connection;
        let mut addresses: *mut c_char = ptr::null_mut();
        // SAFETY: the call sets `addresses` to a string that is ours to release.
        checked(unsafe { (functions.rados_getaddrs)(*handle, &mut addresses) })?;
        if addresses.is_null() {
            return Err(Errno::IO);
        }
        // SAFETY: the string ends with a zero byte, and is released once, after it was copied.
        let text = unsafe { CStr::from_ptr(addresses) }.to_string_lossy().into_owned();
        // SAFETY: as above.
        unsafe { (functions.rados_buffer_free)(addresses) };
        Ok(text)
    }

    /// Fences the instance at this address: once this returns, and the caller's own writes go by
    /// the map that it has then, no write of that instance can land after them.
    pub fn fence(&self, address: &str, seconds: u32) -> Result<(), Errno> {
        let Connection { functions, handle } = &*self.connection;
        let address = c_string(address)?;
        // SAFETY: the library does not change the string, whatever its type says.
        checked(unsafe { (functions.rados_blocklist_add)(*handle, address.as_ptr().cast_mut(), seconds) })?;
        // SAFETY: the handle is valid.
        checked(unsafe { (functions.rados_wait_for_latest_osdmap)(*handle) }).map(drop)
    }
}

impl Connection {
    /// Sets a parameter.
    fn set(&self, name: &str, value: &str) -> Result<(), CephError> {
        let failed = || CephError::call(format!("set {name}"));
        let (named, value) = (c_string(name).map_err(failed())?, c_string(value).map_err(failed())?);
        // SAFETY: the handle is valid and not connected yet, and both strings live through the
        // call, which copies them.
        checked(unsafe { (self.functions.rados_conf_set)(self.handle, named.as_ptr(), value.as_ptr()) })
            .map_err(failed())?;
        Ok(())
    }

    fn set_given(&self, given: &GivenConf) -> Result<(), CephError> {
        for (name, value) in WITHOUT_FILES {
            self.set(name, value)?;
        }
        for (name, value) in &given.parameters {
            if !PARAMETERS.contains(&name.as_str()) {
                return Err(CephError::call(format!("set {name}"))(Errno::PERM));
            }
            self.set(name, value)?;
        }
        let failed = || CephError::call("set the user's key");
        // The text with its final zero, in memory that is wiped.
        let mut key = SecretBytes::zeroed(given.key.len() + 1).map_err(|_| failed()(Errno::NOMEM))?;
        key.expose_mut()[..given.key.len()].copy_from_slice(given.key.expose());
        let text = CStr::from_bytes_with_nul(key.expose()).map_err(|_| failed()(Errno::INVAL))?;
        // SAFETY: as in `set`.
        checked(unsafe { (self.functions.rados_conf_set)(self.handle, c"key".as_ptr(), text.as_ptr()) })
            .map_err(failed())?;
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: this is the last use of the handle: pools and images keep the connection.
        unsafe { (self.functions.rados_shutdown)(self.handle) };
    }
}
