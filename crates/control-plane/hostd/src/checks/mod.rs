//! Whether this machine is fit for what it is to do: what is looked at, what was found, why it
//! matters, what to do about it.
//!
//! - [`memory`]: what takes memory of guests and keys to a disk. It decides, by [`crypto_safe`],
//!   whether VMs with encrypted disks start.
//! - [`kernel`], [`programs`], [`place`]: what else VMs take. hostd does without some of it; a
//!   person should know.
//! - [`vms`]: what each VM of this host takes for its next start.
//! - [`storage`]: what a directory lies on, layer by layer.
//!
//! Everything that the kernel tells is read below a [`Root`], which tests replace by a tree of
//! their own. Nothing here changes anything, and nothing needs hostd: `strongroom doctor` asks
//! before there is one.

pub mod crypto_safe;
pub mod interfaces;
pub mod kernel;
pub mod memory;
pub mod place;
pub mod programs;
pub mod storage;
pub mod vms;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The longest file of the kernel's that is read, in bytes: more than any of those here has.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// How a machine is in one respect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What was looked at: a stable name for programs.
    pub check: String,
    /// Whether it is as it should be.
    pub verdict: Verdict,
    /// What was found: a sentence without its full stop.
    pub found: String,
    /// Why it matters, where it is not as it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_step: Option<String>,
}

/// Whether something is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is.
    Ok,
    /// Something is worse for it, or will be.
    Warning,
    /// Something is not done because of it, or should not be.
    Refused,
}

impl Finding {
    /// Something is as it should be.
    pub fn ok(check: &str, found: impl Into<String>) -> Self {
        Self {
            check: check.to_owned(),
            verdict: Verdict::Ok,
            found: found.into(),
            why: None,
            next_step: None,
        }
    }

    /// Something is worse for it.
    pub fn warning(
        check: &str,
        found: impl Into<String>,
        why: impl Into<String>,
        next_step: impl Into<String>,
    ) -> Self {
        let (why, next_step) = (Some(why.into()), Some(next_step.into()));
        Self { verdict: Verdict::Warning, why, next_step, ..Self::ok(check, found) }
    }

    /// Something is not done because of it.
    pub fn refused(
        check: &str,
        found: impl Into<String>,
        why: impl Into<String>,
        next_step: impl Into<String>,
    ) -> Self {
        Self { verdict: Verdict::Refused, ..Self::warning(check, found, why, next_step) }
    }
}

/// Where the kernel's files are: `/`, or a directory with a tree like it.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Root {
    /// This machine's.
    pub fn machine() -> Self {
        Self::at("/")
    }

    /// A tree of its own.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// Where an absolute path is below this root.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// What is in a file, without space around it; nothing if it cannot be read.
    pub fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        read(&self.path(path))
    }

    /// Whether something is there.
    pub fn has(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }
}

/// What is in a file, without space around it. Files of the kernel say that they are empty, so they
/// are read to their end.
fn read(path: &Path) -> Option<String> {
    let content = strongroom_files::read(path, FILE_BYTES_MAX).ok()?;
    Some(String::from_utf8_lossy(&content).trim().to_owned())
}

/// Everything that can be told of this machine without a home and without hostd.
pub fn of_machine(root: &Root) -> Vec<Finding> {
    let mut findings = memory::findings(root);
    findings.extend(kernel::findings(root));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree with these files.
    pub(in crate::checks) fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        for (path, content) in files {
            let path = root.path(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        (directory, root)
    }

    /// Links of a tree: where, and to what below the root.
    pub(in crate::checks) fn link(root: &Root, links: &[(&str, &str)]) {
        for (at, to) in links {
            let at = root.path(at);
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(root.path(to), at).unwrap();
        }
    }

    #[test]
    fn this_machine_is_looked_at_without_rights_or_harm() {
        let findings = of_machine(&Root::machine());
        assert!(findings.len() > 8, "{findings:?}");
        for finding in &findings {
            assert_eq!(finding.verdict == Verdict::Ok, finding.next_step.is_none(), "{finding:?}");
        }
    }

    #[test]
    fn a_machine_that_tells_nothing_is_not_taken_for_safe_by_accident() {
        let (_directory, root) = tree(&[]);
        assert!(of_machine(&root).iter().any(|finding| finding.verdict == Verdict::Refused));
    }
}
