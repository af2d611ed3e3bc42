//! A directory tree at one moment, to check that nothing in it was changed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Everything under a directory: names, kinds, permissions, owners, and content. Times are left
/// out, since reading may change them.
#[derive(PartialEq, Eq)]
pub struct Snapshot(BTreeMap<PathBuf, Entry>);

#[derive(PartialEq, Eq)]
struct Entry {
    mode: u32,
    owner: (u32, u32),
    content: Vec<u8>,
}

impl Snapshot {
    /// Takes a snapshot. For small trees: it holds every file's content.
    pub fn of(directory: &Path) -> Self {
        let mut entries = BTreeMap::new();
        let mut unread = vec![directory.to_owned()];
        while let Some(path) = unread.pop() {
            let mut read = || -> std::io::Result<_> {
                let metadata = fs::symlink_metadata(&path)?;
                let mut content = Vec::new();
                if metadata.is_dir() {
                    for entry in fs::read_dir(&path)? {
                        unread.push(entry?.path());
                    }
                } else if metadata.is_file() {
                    content = fs::read(&path)?;
                }
                Ok((metadata, content))
            };
            let (metadata, content) =
                read().unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
            let owner = (metadata.uid(), metadata.gid());
            entries.insert(path.clone(), Entry { mode: metadata.permissions().mode(), owner, content });
        }
        Self(entries)
    }

    /// Fails the test unless the tree is unchanged.
    #[track_caller]
    pub fn assert_untouched(&self, directory: &Path) {
        let now = Self::of(directory);
        let changed: Vec<_> = self
            .0
            .keys()
            .chain(now.0.keys())
            .filter(|path| self.0.get(*path) != now.0.get(*path))
            .map(|path| path.display().to_string())
            .collect();
        assert!(changed.is_empty(), "touched: {changed:?}");
    }
}
