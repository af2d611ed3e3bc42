//! Directories: objects whose maps name files and other directories.

use std::fmt;
use std::str::FromStr;

use rustix::io::Errno;
use uuid::Uuid;

use crate::ceph::{Change, Pool, Step};

/// The attribute of a directory that every change of its names raises.
const VERSION: &str = "version";
/// The most names of a directory that is listed. Somebody who fills one must not make a host read
/// without end.
const NAMES_MAX: usize = 1 << 16;
/// How often a change is tried again because others have changed the directory meanwhile.
const ATTEMPTS: usize = 1000;

/// A random name of an object, in 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ObjectId(Uuid);

impl ObjectId {
    pub(crate) fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.simple().fmt(f)
    }
}

impl FromStr for ObjectId {
    type Err = Errno;

    /// Nothing that lies on a cluster is believed: the text becomes part of objects' names.
    fn from_str(text: &str) -> Result<Self, Errno> {
        Uuid::try_parse(text).map(Self).map_err(|_| Errno::BADMSG)
    }
}

/// What a name of a directory leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A directory.
    Directory(ObjectId),
    /// A small file.
    Object(ObjectId),
    /// A file of blocks.
    Image(ObjectId),
}

impl Entry {
    fn encode(&self) -> Vec<u8> {
        let (kind, id) = match self {
            Self::Directory(id) => ("directory", id),
            Self::Object(id) => ("object", id),
            Self::Image(id) => ("image", id),
        };
        format!("{kind} {id}").into_bytes()
    }

    fn decode(bytes: &[u8]) -> Result<Self, Errno> {
        let text = std::str::from_utf8(bytes).map_err(|_| Errno::BADMSG)?;
        match text.split_once(' ') {
            Some(("directory", id)) => Ok(Self::Directory(id.parse()?)),
            Some(("object", id)) => Ok(Self::Object(id.parse()?)),
            Some(("image", id)) => Ok(Self::Image(id.parse()?)),
            _ => Err(Errno::BADMSG),
        }
    }
}

/// A directory's names.
#[derive(Clone)]
pub(crate) struct Names {
    pool: Pool,
    object: String,
}

/// A change of one directory's names.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameChange<'a> {
    pub(crate) remove: Option<&'a str>,
    pub(crate) set: Option<(&'a str, Entry)>,
}

impl Names {
    /// Those of the datastore's directory.
    pub(crate) fn root(pool: &Pool) -> Self {
        Self { pool: pool.clone(), object: "dir.root".to_owned() }
    }

    /// Those of a directory.
    pub(crate) fn of(pool: &Pool, id: &ObjectId) -> Self {
        Self { pool: pool.clone(), object: format!("dir.{id}") }
    }

    /// The object that has them.
    pub(crate) fn object(&self) -> &str {
        &self.object
    }

    /// Makes the directory, without names. `EXIST` if it exists.
    pub(crate) fn make(&self) -> Result<(), Errno> {
        self.pool.change(&self.object, &Change(vec![Step::Create, Step::SetAttribute(VERSION, b"0")]))
    }

    /// Removes the directory if it has no names; `NOTEMPTY` if it has any.
    pub(crate) fn remove(&self) -> Result<(), Errno> {
        self.retried(|version| match self.pool.entries(&self.object, NAMES_MAX)?.is_empty() {
            true => {
                let steps = vec![Step::AttributeIs(VERSION, version), Step::Remove];
                self.pool.change(&self.object, &Change(steps))
            }
            false => Err(Errno::NOTEMPTY),
        })
    }

    /// What a name leads to.
    pub(crate) fn entry(&self, name: &str) -> Result<Option<Entry>, Errno> {
        self.pool.entry(&self.object, name)?.map(|bytes| Entry::decode(&bytes)).transpose()
    }

    /// All names, sorted.
    pub(crate) fn all(&self) -> Result<Vec<String>, Errno> {
        Ok(self.pool.entries(&self.object, NAMES_MAX)?.into_keys().collect())
    }

    /// Makes the change that `decide` finds right, at once. It is asked again if others were
    /// faster.
    pub(crate) fn change<'a>(
        &self,
        mut decide: impl FnMut() -> Result<NameChange<'a>, Errno>,
    ) -> Result<(), Errno> {
        self.retried(|version| {
            let NameChange { remove, set } = decide()?;
            let set = set.map(|(name, entry)| (name, entry.encode()));
            let next = following(version)?;
            let mut steps = vec![Step::AttributeIs(VERSION, version), Step::SetAttribute(VERSION, &next)];
            steps.extend(remove.map(Step::RemoveEntry));
            steps.extend(set.as_ref().map(|(name, value)| Step::SetEntry(name, value)));
            self.pool.change(&self.object, &Change(steps))
        })
    }

    /// Makes a name; `EXIST` if there is one.
    pub(crate) fn add(&self, name: &str, entry: Entry) -> Result<(), Errno> {
        self.change(|| match self.entry(name)? {
            Some(_) => Err(Errno::EXIST),
            None => Ok(NameChange { remove: None, set: Some((name, entry)) }),
        })
    }

    /// Removes a name, if it leads to `entry`; `NOENT` if it does not.
    pub(crate) fn remove_name(&self, name: &str, entry: Entry) -> Result<(), Errno> {
        self.change(|| match self.entry(name)? {
            Some(found) if found == entry => Ok(NameChange { remove: Some(name), set: None }),
            _ => Err(Errno::NOENT),
        })
    }

    /// Tries what is given the directory's version again as long as that changes meanwhile.
    fn retried(&self, attempt: impl FnMut(&[u8]) -> Result<(), Errno>) -> Result<(), Errno> {
        compared_and_set(&self.pool, &self.object, VERSION, attempt)
    }
}

/// Tries a change that is made only while an attribute has the value that it is given, again as
/// long as others change that first.
pub(crate) fn compared_and_set(
    pool: &Pool,
    object: &str,
    attribute: &str,
    mut attempt: impl FnMut(&[u8]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    for _ in 0..ATTEMPTS {
        match attempt(&pool.attribute(object, attribute)?) {
            Err(Errno::CANCELED) => {}
            attempted => return attempted,
        }
    }
    Err(Errno::BUSY)
}

/// The value of a version after the next change.
pub(crate) fn following(version: &[u8]) -> Result<Vec<u8>, Errno> {
    let version = std::str::from_utf8(version).ok().and_then(|text| text.parse::<u64>().ok());
    let next = version.and_then(|version| version.checked_add(1)).ok_or(Errno::BADMSG)?;
    Ok(next.to_string().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_is_none_of_ours_is_refused() {
        let entry = Entry::Image(ObjectId::random());
        assert_eq!(Entry::decode(&entry.encode()).unwrap(), entry);
        for text in ["", "image", "image ../x", "link 00000000000000000000000000000000", "image 1"] {
            assert_eq!(Entry::decode(text.as_bytes()), Err(Errno::BADMSG), "{text}");
        }
    }

    #[test]
    fn versions_count() {
        assert_eq!(following(b"9").unwrap(), b"10");
        assert_eq!(following(b"nine"), Err(Errno::BADMSG));
    }
}
