//! Paths on a cluster.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::path::{Component, Path};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use strongroom_datastore::file::storage::{Directory, Lockable, Storage, StoredFile};
use strongroom_datastore::file::{DatastoreError, FileSystem, FileSystemKind, is_layer_file};
use strongroom_types::Redundancy;

use crate::ceph::{
    CephError, Cluster, ClusterOptions, Image, ImageAccess, ImageShape, Pool, create_image, make_namespace,
    make_trash,
};
use crate::file::{self, ObjectLock, RbdFile};
use crate::holder::Holder;
use crate::instances::{Instance, Instances};
use crate::names::{Entry, NameChange, Names, ObjectId};

/// For how long an instance that has died is refused: longer than anything of it can be under way.
const FENCED_SECONDS: u32 = 10 * 365 * 24 * 60 * 60;

/// How long what the monitors said about the pools' redundancy is believed.
const REDUNDANCY_KEPT: Duration = Duration::from_secs(60);

/// Where a datastore lies.
#[derive(Clone, Debug)]
pub struct RbdOptions {
    /// The cluster and the user.
    pub cluster: ClusterOptions,
    /// The replicated pool of its names, locks and small files.
    pub pool: String,
    /// The pool of the blocks, if another, such as an erasure-coded one.
    pub data_pool: Option<String>,
    /// The namespace in the pools.
    pub namespace: String,
}

/// The datastore's directories and files.
#[derive(Clone)]
pub struct RbdStorage(Arc<Shared>);

pub(crate) struct Shared {
    cluster: Cluster,
    pub(crate) pool: Pool,
    data_pool: Option<String>,
    /// The pools, of which the last one has the blocks.
    pool_names: Vec<String>,
    /// The open images: several open files of this process share one, and its lock. Each has a
    /// lock of its own, as opening one waits for the cluster.
    images: Mutex<HashMap<OpenedAs, Arc<Mutex<Weak<Image>>>>>,
    pub(crate) instances: Instances,
    own: Instance,
    /// The addresses of instances that were fenced.
    fenced: Mutex<HashSet<String>>,
    /// What the monitors said last about the pools, and when: it hardly ever changes.
    redundancy: Mutex<Option<(Redundancy, Instant)>>,
}

#[derive(PartialEq, Eq, Hash)]
struct OpenedAs {
    id: ObjectId,
    writes: bool,
}

impl Shared {
    /// How many losses the pools outlive; `None` if the monitors do not say it.
    fn redundancy(&self) -> Option<Redundancy> {
        let mut known = self.redundancy.lock();
        if known.is_none_or(|(_, asked)| asked.elapsed() > REDUNDANCY_KEPT) {
            let told = self.cluster.redundancy(&self.pool_names);
            *known = told
                .inspect_err(|errno| tracing::warn!("the pools' redundancy is not known: {errno}"))
                .ok()
                .map(|redundancy| (redundancy, Instant::now()));
        }
        known.map(|(redundancy, _)| redundancy)
    }

    pub(crate) fn open_image(&self, id: &ObjectId, access: ImageAccess) -> Result<Arc<Image>, Errno> {
        let key = OpenedAs { id: *id, writes: access == ImageAccess::Write };
        let place = {
            let mut images = self.images.lock();
            // One that another thread has at hand may be locked, and is about to be used.
            images.retain(|_, place| Arc::strong_count(place) > 1 || place.lock().strong_count() > 0);
            Arc::clone(images.entry(key).or_default())
        };
        let mut known = place.lock();
        if let Some(image) = known.upgrade() {
            return Ok(image);
        }
        let image = Arc::new(Image::open(&self.pool, &file::image_of(id), access)?);
        *known = Arc::downgrade(&image);
        Ok(image)
    }

    /// Fences an instance, once.
    pub(crate) fn fence(&self, address: &str) -> Result<(), Errno> {
        if self.is_fenced(address) {
            return Ok(());
        }
        tracing::warn!(address, "fencing a client of the cluster");
        self.cluster.fence(address, FENCED_SECONDS)?;
        self.fenced.lock().insert(address.to_owned());
        Ok(())
    }

    pub(crate) fn is_fenced(&self, address: &str) -> bool {
        self.fenced.lock().contains(address)
    }
}

impl Drop for Shared {
    /// Nothing of this instance is open any more. If it cannot say so, it is fenced in vain.
    fn drop(&mut self) {
        let _ = self.instances.leave(&self.own);
    }
}

impl RbdStorage {
    /// Connects, and makes the datastore's directory if it does not exist.
    ///
    /// # Errors
    /// If the cluster cannot be reached, or the user may not write to the pool.
    pub fn connect(options: &RbdOptions) -> Result<Self, CephError> {
        if !Holder::own().is_known() {
            return Err(CephError::Nameless);
        }
        let cluster = Cluster::connect(&options.cluster)?;
        let pool = cluster.pool(&options.pool, &options.namespace)?;
        let made = match options.namespace.as_str() {
            "" => Ok(()),
            name => make_namespace(&cluster.pool(&options.pool, "")?, name),
        };
        let made = made.and_then(|()| make_trash(&pool));
        let failed = |errno| {
            let action = format!("make a datastore in the pool {}", options.pool);
            CephError::Call { action, errno }
        };
        made.map_err(failed)?;
        let instances = Instances::of(&pool);
        let user = &options.cluster.user;
        let own = cluster.own_address().and_then(|address| instances.enter(user, &address));
        let own = own.map_err(|errno| match errno {
            Errno::SHUTDOWN => CephError::Fenced { user: user.clone() },
            errno => failed(errno),
        })?;
        let data_pool = options.data_pool.clone();
        let (images, fenced) = (Mutex::default(), Mutex::default());
        let pool_names = [Some(&options.pool), data_pool.as_ref()].into_iter().flatten().cloned().collect();
        let shared = Shared {
            cluster,
            pool,
            data_pool,
            pool_names,
            images,
            instances,
            own,
            fenced,
            redundancy: Mutex::default(),
        };
        let storage = Self(Arc::new(shared));
        storage.forget_the_ended().map_err(failed)?;
        match Names::root(&storage.0.pool).make() {
            Ok(()) | Err(Errno::EXIST) => Ok(storage),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// The address of this client, by which others fence it.
    pub fn own_address(&self) -> Result<String, Errno> {
        self.0.cluster.own_address()
    }

    /// The cephx user of this client.
    pub fn own_user(&self) -> &str {
        self.0.own.user()
    }

    /// Fences the instances that a killed process of this machine, or an earlier boot of it, has
    /// left.
    fn forget_the_ended(&self) -> Result<(), Errno> {
        let Shared { instances, own, .. } = &*self.0;
        instances.ended(own)?.iter().try_for_each(|ended| self.fence_instance(ended))
    }

    fn fence_instance(&self, instance: &Instance) -> Result<(), Errno> {
        let Shared { instances, own, .. } = &*self.0;
        self.0.fence(&instance.address)?;
        if !instance.is_of_boot_of(own) {
            instances.mark_lost(instance)?;
        }
        instances.leave(instance)
    }

    /// Fences a host that is lost, by its cephx user: no write of it can land once this has
    /// returned, its locks are free, and it cannot connect again until
    /// [`admit_host`](Self::admit_host) lets it.
    /// May be repeated. Returns how many of its instances were fenced.
    ///
    /// # Errors
    /// `INVAL` for this client's own user; the errors of the cluster. The host can then not connect
    /// any more, and may still write.
    pub fn fence_host(&self, user: &str) -> Result<usize, Errno> {
        if user == self.0.own.user() || user.is_empty() {
            return Err(Errno::INVAL);
        }
        let found = self.0.instances.close_to(user)?;
        found.iter().try_for_each(|instance| self.fence_instance(instance))?;
        Ok(found.len())
    }

    /// Lets a host that was fenced connect again. What it had open stays refused.
    pub fn admit_host(&self, user: &str) -> Result<(), Errno> {
        self.0.instances.open_to(user)
    }

    /// Whether a host is fenced.
    pub fn is_host_fenced(&self, user: &str) -> Result<bool, Errno> {
        self.0.instances.is_closed_to(user)
    }

    /// Fences another client, whose host has lost its right to the volumes that it has open: its
    /// locks are free after that. No write of it can land once this has returned.
    pub fn take_over(&self, address: &str) -> Result<(), Errno> {
        self.0.fence(address)
    }

    /// What a path leads to.
    fn entry(&self, path: &Path) -> Result<Found, Errno> {
        let mut found = Found::Root;
        for name in names_in(path) {
            let names = self.names(&found)?;
            found = Found::Entry(names.entry(name?)?.ok_or(Errno::NOENT)?);
        }
        Ok(found)
    }

    fn names(&self, found: &Found) -> Result<Names, Errno> {
        match found {
            Found::Root => Ok(Names::root(&self.0.pool)),
            Found::Entry(Entry::Directory(id)) => Ok(Names::of(&self.0.pool, id)),
            Found::Entry(Entry::Object(_) | Entry::Image(_)) => Err(Errno::NOTDIR),
        }
    }

    /// The directory above a path, and the path's name in it.
    fn place<'path>(&self, path: &'path Path) -> Result<(Names, &'path str), Errno> {
        let name = path.file_name().and_then(OsStr::to_str).ok_or(Errno::INVAL)?;
        let above = self.entry(path.parent().unwrap_or(Path::new("")))?;
        Ok((self.names(&above)?, name))
    }
}

enum Found {
    Root,
    Entry(Entry),
}

/// The names in a path; those of a cluster begin at the datastore.
fn names_in(path: &Path) -> impl Iterator<Item = Result<&str, Errno>> {
    path.components().filter_map(|component| match component {
        Component::RootDir | Component::CurDir => None,
        Component::Normal(name) => Some(name.to_str().ok_or(Errno::INVAL)),
        Component::ParentDir | Component::Prefix(_) => Some(Err(Errno::INVAL)),
    })
}

impl Storage for RbdStorage {
    fn open_directory(&self, path: &Path) -> Result<Arc<dyn Directory>, Errno> {
        let names = self.names(&self.entry(path)?)?;
        let lock = ObjectLock::new(&self.0, names.object().to_owned());
        Ok(Arc::new(RbdDirectory { storage: self.clone(), names, lock }))
    }

    fn make_directory(&self, path: &Path) -> Result<(), Errno> {
        if names_in(path).next().is_none() {
            return Err(Errno::EXIST);
        }
        let (above, name) = self.place(path)?;
        let id = ObjectId::random();
        let names = Names::of(&self.0.pool, &id);
        names.make()?;
        let made = above.add(name, Entry::Directory(id));
        if made.is_err() {
            let _ = names.remove();
        }
        made
    }

    fn remove_directory(&self, path: &Path) -> Result<(), Errno> {
        let (above, name) = self.place(path)?;
        let Some(Entry::Directory(id)) = above.entry(name)? else { return Err(Errno::NOTDIR) };
        match Names::of(&self.0.pool, &id).remove() {
            // It was removed before, and its name was not.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        above.remove_name(name, Entry::Directory(id))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), Errno> {
        let (source, old) = self.place(from)?;
        let (target, new) = self.place(to)?;
        let moved = source.entry(old)?.ok_or(Errno::NOENT)?;
        let is_within = source.object() == target.object();
        target.change(|| match (source.entry(old)?, target.entry(new)?) {
            (Some(found), None) if found == moved => {
                let remove = is_within.then_some(old);
                Ok(NameChange { remove, set: Some((new, found)) })
            }
            (_, Some(_)) => Err(Errno::EXIST),
            _ => Err(Errno::NOENT),
        })?;
        if is_within {
            return Ok(());
        }
        source.remove_name(old, moved)
    }

    fn exists(&self, path: &Path) -> bool {
        self.entry(path).is_ok()
    }

    fn is_directory(&self, path: &Path) -> bool {
        matches!(self.entry(path), Ok(Found::Root | Found::Entry(Entry::Directory(_))))
    }
}

struct RbdDirectory {
    storage: RbdStorage,
    names: Names,
    lock: ObjectLock,
}

impl Lockable for RbdDirectory {
    fn try_lock(&self, operation: FlockOperation) -> Result<(), Errno> {
        self.lock.try_lock(operation).map(drop)
    }

    fn lock_holder(&self) -> Option<u32> {
        self.lock.holder()
    }
}

impl RbdDirectory {
    fn shared(&self) -> &Arc<Shared> {
        &self.storage.0
    }

    fn pool(&self) -> &Pool {
        &self.shared().pool
    }

    /// Makes a file and its name; `EXIST` if somebody else has made that meanwhile.
    fn make(&self, name: &str) -> Result<Entry, Errno> {
        let (id, pool) = (ObjectId::random(), self.pool());
        file::make(pool, &id)?;
        let entry = match is_layer_file(name) {
            true => Entry::Image(id),
            false => Entry::Object(id),
        };
        let shape = ImageShape { data_pool: self.shared().data_pool.as_deref() };
        let image = match &entry {
            Entry::Image(id) => create_image(pool, &file::image_of(id), 0, shape),
            Entry::Object(_) | Entry::Directory(_) => Ok(()),
        };
        let made = image.and_then(|()| self.names.add(name, entry));
        if made.is_err() {
            let _ = file::reap(pool, &entry, &Holder::own().cookie());
        }
        made.map(|()| entry)
    }

    /// Removes a file whose name was removed, if that was its last one.
    fn forget(&self, entry: &Entry) -> Result<(), Errno> {
        let (Entry::Object(id) | Entry::Image(id)) = entry else { return Ok(()) };
        if file::count_name(self.pool(), id, -1)? > 0 {
            return Ok(());
        }
        match file::reap(self.pool(), entry, &Holder::own().cookie()) {
            // The last one that has it open removes it.
            Ok(()) | Err(Errno::BUSY) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

impl Directory for RbdDirectory {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn file_system(&self, path: &Path) -> Result<FileSystem, DatastoreError> {
        let Shared { cluster, pool_names, .. } = &**self.shared();
        let space = cluster.space(pool_names).map_err(|errno| DatastoreError::System {
            action: "examine the cluster of",
            path: path.to_owned(),
            errno,
        })?;
        let redundancy = self.shared().redundancy();
        Ok(FileSystem {
            kind: FileSystemKind::Ceph,
            fill_bytes_min: None,
            writes_whole_blocks: true,
            reserves_space: false,
            syncs_in_turn: false,
            total_bytes: space.total_bytes,
            available_bytes: space.available_bytes,
            redundancy,
        })
    }

    fn open(&self, name: &str, flags: OFlags) -> Result<Box<dyn StoredFile>, Errno> {
        let access = match flags.intersects(OFlags::WRONLY | OFlags::RDWR) {
            true => ImageAccess::Write,
            false => ImageAccess::Read,
        };
        let entry = loop {
            match self.names.entry(name)? {
                Some(_) if flags.contains(OFlags::CREATE | OFlags::EXCL) => return Err(Errno::EXIST),
                Some(entry) => break entry,
                None if !flags.contains(OFlags::CREATE) => return Err(Errno::NOENT),
                None => match self.make(name) {
                    Err(Errno::EXIST) if !flags.contains(OFlags::EXCL) => {}
                    made => break made?,
                },
            }
        };
        let file = match entry {
            Entry::Object(id) => RbdFile::of_object(self.shared(), id, access),
            Entry::Image(id) => RbdFile::of_image(self.shared(), id, access)?,
            Entry::Directory(_) => return Err(Errno::ISDIR),
        };
        if flags.contains(OFlags::TRUNC) {
            file.set_length(0)?;
        }
        Ok(Box::new(file))
    }

    fn names(&self) -> Result<Vec<String>, Errno> {
        self.names.all()
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        let mut replaced = None;
        self.names.change(|| {
            let moved = self.names.entry(from)?.ok_or(Errno::NOENT)?;
            replaced = self.names.entry(to)?;
            Ok(NameChange { remove: Some(from), set: Some((to, moved)) })
        })?;
        replaced.map_or(Ok(()), |replaced| self.forget(&replaced))
    }

    fn remove(&self, name: &str) -> Result<(), Errno> {
        let mut removed = None;
        self.names.change(|| {
            removed = Some(self.names.entry(name)?.ok_or(Errno::NOENT)?);
            Ok(NameChange { remove: Some(name), set: None })
        })?;
        removed.map_or(Ok(()), |removed| self.forget(&removed))
    }

    fn link(&self, _: &dyn Directory, name: &str, file: &dyn StoredFile) -> Result<(), Errno> {
        let file = file.as_any().downcast_ref::<RbdFile>().ok_or(Errno::XDEV)?;
        let id = *file.id();
        let entry = match RbdFile::image_of(file) {
            Some(_) => Entry::Image(id),
            None => Entry::Object(id),
        };
        file::count_name(self.pool(), &id, 1)?;
        let made = self.names.add(name, entry);
        if made.is_err() {
            let _ = file::count_name(self.pool(), &id, -1);
        }
        made
    }

    fn allocated_bytes(&self, name: &str) -> Result<u64, Errno> {
        if name == "." {
            return Ok(0);
        }
        match self.names.entry(name)?.ok_or(Errno::NOENT)? {
            Entry::Object(id) => self.pool().length(&file::object_of(&id)),
            Entry::Image(id) => self.shared().open_image(&id, ImageAccess::Read)?.content_bytes(),
            Entry::Directory(_) => Ok(0),
        }
    }

    fn link_count(&self, name: &str) -> Result<u64, Errno> {
        match self.names.entry(name)?.ok_or(Errno::NOENT)? {
            Entry::Object(id) | Entry::Image(id) => file::names_of(self.pool(), &id),
            Entry::Directory(_) => Ok(1),
        }
    }

    /// Every acknowledged change of names is durable.
    fn sync(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// Every acknowledged write is durable.
    fn sync_file_system(&self) -> Result<(), Errno> {
        Ok(())
    }
}
