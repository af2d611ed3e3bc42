//! Which storage a path lies on: the host's file systems, or a cluster that this process has
//! mounted.
//!
//! The paths of clusters are all below [`CLUSTERS`], one name a datastore, and lead to nothing on
//! the host: a cluster that is not mounted is an error, and no volume is made below a directory of
//! that name. The decision is made by the path's text. A link that leads to such a path finds
//! nothing, because nobody makes that directory.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustix::io::Errno;
use strongroom_types::DatastoreId;

use super::host::Host;
use super::storage::{Directory, Storage};

/// The directory that the paths of clusters begin with.
pub const CLUSTERS: &str = "/run/strongroom/ceph";

/// The storage that each path lies on.
pub const BY_PATH: &dyn Storage = &ByPath;

static MOUNTED: RwLock<BTreeMap<DatastoreId, Arc<dyn Storage>>> = RwLock::new(BTreeMap::new());

/// The path of a datastore on a cluster. It is the same on every host.
pub fn cluster_path(datastore: DatastoreId) -> PathBuf {
    Path::new(CLUSTERS).join(datastore.to_string())
}

/// The datastore on a cluster that a path names, or lies in.
pub fn cluster_of(path: &Path) -> Option<DatastoreId> {
    let below = path.strip_prefix(CLUSTERS).ok()?;
    below.components().next()?.as_os_str().to_str()?.parse().ok()
}

/// Has this process find a datastore at its [`cluster_path`]. Whatever was mounted there stays in
/// use where it is open.
pub fn mount(datastore: DatastoreId, storage: Arc<dyn Storage>) {
    MOUNTED.write().insert(datastore, storage);
}

/// Ends a mount. What is open stays open.
pub fn unmount(datastore: DatastoreId) {
    MOUNTED.write().remove(&datastore);
}

/// Where a path leads.
struct Located {
    storage: Arc<dyn Storage>,
    /// The path on that storage.
    path: PathBuf,
    /// `None` on the host's file systems.
    datastore: Option<DatastoreId>,
}

/// The storage that a path lies on, and the path there.
///
/// # Errors
/// `NOMEDIUM` for a cluster that is not mounted; `INVAL` for a path to one that goes up.
pub fn storage_of(path: &Path) -> Result<(Arc<dyn Storage>, PathBuf), Errno> {
    located(path).map(|found| (found.storage, found.path))
}

fn located(path: &Path) -> Result<Located, Errno> {
    // A path that cannot be made absolute is left to the kernel.
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut plain = PathBuf::new();
    let mut goes_up = false;
    for component in absolute.components() {
        if component == Component::ParentDir {
            goes_up = true;
            plain.pop();
        } else {
            plain.push(component);
        }
    }
    let Ok(below) = plain.strip_prefix(CLUSTERS) else {
        return Ok(Located { storage: Arc::new(Host), path: path.to_owned(), datastore: None });
    };
    if goes_up {
        return Err(Errno::INVAL);
    }
    let datastore = cluster_of(&plain).ok_or(Errno::NOMEDIUM)?;
    let storage = MOUNTED.read().get(&datastore).map(Arc::clone).ok_or(Errno::NOMEDIUM)?;
    let path = below.components().skip(1).collect();
    Ok(Located { storage, path, datastore: Some(datastore) })
}

struct ByPath;

impl Storage for ByPath {
    fn open_directory(&self, path: &Path) -> Result<Arc<dyn Directory>, Errno> {
        let (storage, path) = storage_of(path)?;
        storage.open_directory(&path)
    }

    fn open_volume(&self, path: &Path) -> Result<Arc<dyn Directory>, Errno> {
        let (storage, path) = storage_of(path)?;
        storage.open_volume(&path)
    }

    fn make_directory(&self, path: &Path) -> Result<(), Errno> {
        let (storage, path) = storage_of(path)?;
        storage.make_directory(&path)
    }

    fn remove_directory(&self, path: &Path) -> Result<(), Errno> {
        let (storage, path) = storage_of(path)?;
        storage.remove_directory(&path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), Errno> {
        let (from, to) = (located(from)?, located(to)?);
        if from.datastore != to.datastore {
            return Err(Errno::XDEV);
        }
        from.storage.rename(&from.path, &to.path)
    }

    fn exists(&self, path: &Path) -> bool {
        storage_of(path).is_ok_and(|(storage, path)| storage.exists(&path))
    }

    fn is_directory(&self, path: &Path) -> bool {
        storage_of(path).is_ok_and(|(storage, path)| storage.is_directory(&path))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use strongroom_types::VolumeSize;

    use super::*;
    use crate::file::{
        CreateOptions, Protection, Provisioning, create, delete, identify, list, move_volume, rename,
    };

    /// A directory of the host in the place of a cluster: paths on it begin at its root, as on one.
    struct Below(PathBuf);

    impl Storage for Below {
        fn open_directory(&self, path: &Path) -> Result<Arc<dyn Directory>, Errno> {
            Host.open_directory(&self.0.join(path))
        }

        fn make_directory(&self, path: &Path) -> Result<(), Errno> {
            Host.make_directory(&self.0.join(path))
        }

        fn remove_directory(&self, path: &Path) -> Result<(), Errno> {
            Host.remove_directory(&self.0.join(path))
        }

        fn rename(&self, from: &Path, to: &Path) -> Result<(), Errno> {
            Host.rename(&self.0.join(from), &self.0.join(to))
        }

        fn exists(&self, path: &Path) -> bool {
            Host.exists(&self.0.join(path))
        }

        fn is_directory(&self, path: &Path) -> bool {
            Host.is_directory(&self.0.join(path))
        }
    }

    fn options() -> CreateOptions<'static> {
        CreateOptions {
            size: VolumeSize::new(1 << 20).unwrap(),
            provisioning: Provisioning::Thin,
            protection: Protection::Unencrypted,
            log_bytes: None,
            integrity: None,
        }
    }

    #[test]
    fn a_volume_is_made_where_its_path_says() {
        let (host, cluster) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let id = DatastoreId::random();
        let path = cluster_path(id);
        let refused = create(&path.join("vm1"), &options()).unwrap_err();
        assert_eq!(refused.code(), "not_mounted", "{refused}");
        assert!(refused.to_string().contains(&id.to_string()), "{refused}");
        mount(id, Arc::new(Below(cluster.path().to_owned())));
        identify(&path).unwrap();
        create(&path.join("vm1"), &options()).unwrap();
        assert!(cluster.path().join("vm1/descriptor").exists() && !path.exists());
        rename(&path.join("vm1"), &path.join("vm2")).unwrap();
        assert_eq!(list(&path).unwrap()[0].path(), path.join("vm2"));
        BY_PATH.make_directory(&path.join("web")).unwrap();
        move_volume(&path.join("vm2"), &path.join("web/disk0")).unwrap();
        move_volume(&path.join("vm2"), &path.join("web/disk0")).unwrap();
        assert!(cluster.path().join("web/disk0").exists());
        // No volume leaves its datastore by another name, in either direction.
        create(&host.path().join("vm3"), &options()).unwrap();
        for (from, to) in
            [(path.join("web/disk0"), host.path().join("vm4")), (host.path().join("vm3"), path.join("vm4"))]
        {
            assert_eq!(rename(&from, &to).unwrap_err().code(), "system");
            assert_eq!(move_volume(&from, &to).unwrap_err().code(), "system");
            assert!(BY_PATH.exists(&from) && !BY_PATH.exists(&to));
        }
        delete(&path.join("web/disk0"), Duration::ZERO).unwrap();
        unmount(id);
        assert_eq!(list(&path).unwrap_err().code(), "not_mounted");
    }

    #[test]
    fn no_way_of_writing_a_clusters_path_leads_to_the_host() {
        let id = DatastoreId::random();
        let path = cluster_path(id);
        let text = path.display();
        let up = "../".repeat(std::env::current_dir().unwrap().components().count());
        for (path, errno) in [
            (format!("{text}"), Errno::NOMEDIUM),
            (format!("{text}/vm1"), Errno::NOMEDIUM),
            (format!("/run/./strongroom//ceph/{id}/vm1"), Errno::NOMEDIUM),
            (CLUSTERS.to_owned(), Errno::NOMEDIUM),
            (format!("{CLUSTERS}/other"), Errno::NOMEDIUM),
            (format!("{text}/../{id}"), Errno::INVAL),
            (format!("/run/strongroom/x/../ceph/{id}"), Errno::INVAL),
            (format!("/../run/strongroom/ceph/{id}"), Errno::INVAL),
            (format!("{up}run/strongroom/ceph/{id}"), Errno::INVAL),
        ] {
            assert_eq!(storage_of(Path::new(&path)).map(drop), Err(errno), "{path}");
        }
        for path in ["/run/strongroom", "/run/strongroom/cephs/x", "", "vm1", "/srv/ds/../x"] {
            assert_eq!(storage_of(Path::new(path)).map(|(_, there)| there), Ok(PathBuf::from(path)));
        }
        assert_eq!((cluster_of(&path.join("vm1")), cluster_of(Path::new("/srv/ds"))), (Some(id), None));
    }
}
