//! libvirt, spoken to through virsh: a domain as it runs and as it will be started, and disks that
//! come and go.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use strongroom_types::shell_word;

use crate::domain::{Domain, QemuUser};
use crate::error::LibvirtError;

/// One libvirt.
#[derive(Clone, Debug)]
pub struct Libvirt {
    connect: Option<String>,
}

/// A domain, and what is known of it.
#[derive(Debug)]
pub struct Standing {
    /// Its name.
    pub name: String,
    /// As it runs, if it does.
    pub live: Option<Domain>,
    /// As it will be started, if libvirt keeps it.
    pub config: Option<Domain>,
}

impl Standing {
    /// As it runs and as it will be started.
    pub fn both(&self) -> impl Iterator<Item = &Domain> + Clone {
        self.live.iter().chain(&self.config)
    }

    /// The definitions that are meant by `wanted`: where it is neither, both, as far as there is
    /// either.
    pub fn scope(&self, wanted: Scope) -> Result<Scope, LibvirtError> {
        let there = Scope { live: self.live.is_some(), config: self.config.is_some() };
        if wanted.live && !there.live {
            return Err(LibvirtError::NotRunning(self.name.clone()));
        }
        if wanted.config && !there.config {
            return Err(LibvirtError::Transient(self.name.clone()));
        }
        Ok(if wanted.is_empty() { there } else { wanted })
    }
}

/// Which of a domain's two definitions something is done to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// As it runs.
    pub live: bool,
    /// As it will be started.
    pub config: bool,
}

impl Scope {
    /// Neither.
    pub(crate) fn is_empty(self) -> bool {
        !self.live && !self.config
    }

    fn options<'a>(self) -> impl Iterator<Item = &'a str> {
        [self.live.then_some("--live"), self.config.then_some("--config")].into_iter().flatten()
    }
}

impl Libvirt {
    /// The one at this URI, as virsh has it; without one virsh's own choice.
    pub fn at(connect: Option<String>) -> Self {
        Self { connect }
    }

    /// The arguments by which virsh finds it, for a person.
    pub(crate) fn for_people(&self) -> String {
        self.connect.as_ref().map(|uri| format!(" --connect {}", shell_word(uri))).unwrap_or_default()
    }

    /// The domain of this name, id or UUID.
    pub(crate) fn standing(&self, name: &str) -> Result<Standing, LibvirtError> {
        let told = self.ask(&["dominfo", "--domain", name], None).map_err(|error| match error {
            LibvirtError::Virsh { said, .. } if said.contains("failed to get domain") => {
                LibvirtError::NoDomain { name: name.to_owned(), connect: self.for_people() }
            }
            error => error,
        })?;
        let is = |field: &str, value: &str| {
            told.lines()
                .filter_map(|line| line.split_once(':'))
                .any(|(name, found)| name.trim() == field && found.trim() == value)
        };
        let definition = |options: &[&str]| {
            let xml = self.ask(&[&["dumpxml", "--domain", name], options].concat(), None)?;
            Domain::read(&xml).map_err(|reason| LibvirtError::Xml { what: format!("domain {name}"), reason })
        };
        let persistent = is("Persistent", "yes");
        let live = if is("State", "shut off") { None } else { Some(definition(&[])?) };
        let config = if persistent { Some(definition(&["--inactive"])?) } else { None };
        let known = live.as_ref().or(config.as_ref()).map(|domain| domain.name.clone());
        Ok(Standing { name: known.unwrap_or_else(|| name.to_owned()), live, config })
    }

    /// All domains, as they run and as they will be started. One that goes meanwhile is left out.
    pub(crate) fn all_domains(&self) -> Result<Vec<Domain>, LibvirtError> {
        let listed = self.ask(&["list", "--all", "--uuid"], None)?;
        let commands: Vec<String> = listed
            .split_whitespace()
            .map(|uuid| format!("dumpxml {uuid}; dumpxml --inactive {uuid}"))
            .collect();
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        // One virsh for all of them. It goes on after one that fails, and says in the end that
        // something did.
        let told = self.run(&[&commands.join("; ")], None)?;
        let xml = String::from_utf8_lossy(&told.stdout);
        Domain::read_all(&xml).map_err(|reason| LibvirtError::Xml { what: "the domains".to_owned(), reason })
    }

    /// Who QEMU is here. Where libvirt does not say, nothing special is assumed.
    pub(crate) fn qemu_user(&self) -> QemuUser {
        let told = self.ask(&["capabilities"], None).ok();
        told.and_then(|xml| QemuUser::read(&xml).ok()).unwrap_or_default()
    }

    /// Plugs a disk in.
    pub(crate) fn attach(&self, domain: &str, disk: &str, scope: Scope) -> Result<(), LibvirtError> {
        let mut words = vec!["attach-device", "--domain", domain, "--file", "/dev/stdin"];
        words.extend(scope.options());
        self.ask(&words, Some(disk)).map(drop)
    }

    /// Takes a disk out. Of a domain that runs, its guest is asked to let go of it.
    pub(crate) fn detach(&self, domain: &str, target: &str, scope: Scope) -> Result<(), LibvirtError> {
        let mut words = vec!["detach-disk", "--domain", domain, "--target", target];
        words.extend(scope.options());
        match self.ask(&words, None) {
            // Its guest was asked before, and has not answered yet.
            Err(LibvirtError::Virsh { said, .. }) if said.contains("in the process of unplug") => Ok(()),
            asked => asked.map(drop),
        }
    }

    /// What virsh says to a command that succeeds.
    fn ask(&self, words: &[&str], input: Option<&str>) -> Result<String, LibvirtError> {
        let told = self.run(words, input)?;
        if told.status.success() {
            return Ok(String::from_utf8_lossy(&told.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&told.stderr);
        let said: Vec<&str> = said.lines().map(|line| line.trim_start_matches("error: ").trim()).collect();
        let said = said.into_iter().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
        Err(LibvirtError::Virsh { command: words[0].to_owned(), said })
    }

    fn run(&self, words: &[&str], input: Option<&str>) -> Result<Output, LibvirtError> {
        let mut command = Command::new("virsh");
        command.arg("--quiet").env("LC_ALL", "C");
        if let Some(uri) = &self.connect {
            command.args(["--connect", uri]);
        }
        let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
        command.args(words).stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => LibvirtError::NoVirsh,
            _ => LibvirtError::Start { program: "virsh", error },
        };
        let mut child = command.spawn().map_err(failed)?;
        if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
            // A disk fits the pipe. If virsh does not read it, it says why.
            let _ = stdin.write_all(input.as_bytes());
        }
        child.wait_with_output().map_err(failed)
    }
}

/// Whether QEMU's user can connect to a socket, as far as owners, groups and modes say; if not,
/// what stands in its way. Access lists and further groups of that user may allow more.
pub fn in_the_way(socket: &Path, qemu: &QemuUser) -> Option<String> {
    let (user, group) = qemu.user_and_group?;
    let allows = |path: &Path, bit: u32| {
        let stat = rustix::fs::stat(path).ok()?;
        let (shift, who) = match (stat.st_uid == user, stat.st_gid == group) {
            (true, _) => (6, "its owner"),
            (false, true) => (3, "its group"),
            (false, false) => (0, "others"),
        };
        (stat.st_mode >> shift & bit == 0).then_some(who)
    };
    if user == 0 {
        return None;
    }
    let directories = socket.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev();
    let mut places = directories.map(|directory| (directory, 0o1)).chain([(socket, 0o2)]);
    places.find_map(|(path, bit)| {
        let who = allows(path, bit)?;
        Some(format!("QEMU runs as user {user}, group {group}, and {} is closed to {who}", path.display()))
    })
}
