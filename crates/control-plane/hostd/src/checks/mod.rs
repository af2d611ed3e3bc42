//! Checks of this machine. Each finding states what was checked, what was found, why it matters,
//! and the next step.
//!
//! - [`memory`]: ways in which memory of guests and keys can reach a disk. Through [`crypto_safe`],
//!   these decide whether VMs with encrypted disks start.
//! - [`kernel`], [`programs`], [`place`]: other requirements of VMs. hostd can run without some of
//!   them, but an operator should know.
//! - [`vms`]: the requirements of each VM of this host for its next start.
//! - [`storage`]: the layers of devices below a directory.
//!
//! Files of the kernel are read below a [`Root`], which tests replace by a tree of their own. The
//! checks change nothing and need no hostd: `strongroom doctor` runs them before hostd is set up.

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

/// The longest file that is read from the kernel, in bytes: more than any of those read here.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The name of the check, stable for programs.
    pub check: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The fact that was found: a sentence without its full stop.
    pub found: String,
    /// Why it matters, unless the verdict is [`Verdict::Ok`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The next step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_step: Option<String>,
}

/// The verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Something works less well because of it, or will.
    Warning,
    /// hostd refuses something because of it, or an operator should not do something.
    Refused,
}

impl Finding {
    /// A finding with [`Verdict::Ok`].
    pub fn ok(check: &str, found: impl Into<String>) -> Self {
        Self {
            check: check.to_owned(),
            verdict: Verdict::Ok,
            found: found.into(),
            why: None,
            next_step: None,
        }
    }

    /// A finding with [`Verdict::Warning`].
    pub fn warning(
        check: &str,
        found: impl Into<String>,
        why: impl Into<String>,
        next_step: impl Into<String>,
    ) -> Self {
        let (why, next_step) = (Some(why.into()), Some(next_step.into()));
        Self { verdict: Verdict::Warning, why, next_step, ..Self::ok(check, found) }
    }

    /// A finding with [`Verdict::Refused`].
    pub fn refused(
        check: &str,
        found: impl Into<String>,
        why: impl Into<String>,
        next_step: impl Into<String>,
    ) -> Self {
        Self { verdict: Verdict::Refused, ..Self::warning(check, found, why, next_step) }
    }
}

/// The root of the kernel's files: `/`, or a directory with a similar tree.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Root {
    /// The root of this machine.
    pub fn machine() -> Self {
        Self::at("/")
    }

    /// The tree in this directory.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// Returns an absolute path below this root.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns a file's text, trimmed; `None` if it cannot be read.
    pub fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        read(&self.path(path))
    }

    /// Whether the path exists.
    pub fn has(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }
}

/// Returns a file's text, trimmed. Files of the kernel report a length of 0, so they are read to
/// their end.
fn read(path: &Path) -> Option<String> {
    let content = strongroom_files::read(path, FILE_BYTES_MAX).ok()?;
    Some(String::from_utf8_lossy(&content).trim().to_owned())
}

/// The checks of this machine that need neither a home directory nor hostd.
pub fn of_machine(root: &Root) -> Vec<Finding> {
    let mut findings = memory::findings(root);
    findings.extend(kernel::findings(root));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a tree with these files.
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

    /// Makes symbolic links in a tree, each from a path to a path below the root.
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
