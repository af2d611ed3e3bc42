//! The directory for the state of a machine or a user.

use std::path::{Path, PathBuf};

/// The environment variable that names it.
pub const HOME_VARIABLE: &str = "STRONGROOM_HOME";

/// The home of a machine's services, and of root.
const OF_THE_MACHINE: &str = "/var/lib/strongroom";

/// The home: the directory given on the command line, else `STRONGROOM_HOME`, else
/// `/var/lib/strongroom` for root and `$XDG_STATE_HOME/strongroom` (by default
/// `~/.local/state/strongroom`) for other users. `None` if it cannot be determined.
pub fn home(given: Option<&Path>) -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    choose(given, variable, rustix::process::geteuid().is_root())
}

fn choose(given: Option<&Path>, variable: impl Fn(&str) -> Option<PathBuf>, root: bool) -> Option<PathBuf> {
    if let Some(home) = given.map(Path::to_owned).or_else(|| variable(HOME_VARIABLE)) {
        return std::path::absolute(home).ok();
    }
    if root {
        return Some(PathBuf::from(OF_THE_MACHINE));
    }
    let state = variable("XDG_STATE_HOME").filter(|path| path.is_absolute());
    state.or_else(|| Some(variable("HOME")?.join(".local/state"))).map(|state| state.join("strongroom"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_goes_before_what_is_usual() {
        let all = |name: &str| Some(PathBuf::from(format!("/of/{name}")));
        assert_eq!(choose(Some(Path::new("/x")), all, true).unwrap(), Path::new("/x"));
        assert_eq!(choose(None, all, true).unwrap(), Path::new("/of/STRONGROOM_HOME"));
        assert_eq!(choose(None, |_| None, true).unwrap(), Path::new("/var/lib/strongroom"));
        let state = |name: &str| all(name).filter(|_| name != HOME_VARIABLE);
        assert_eq!(choose(None, state, false).unwrap(), Path::new("/of/XDG_STATE_HOME/strongroom"));
        let home = |name: &str| all(name).filter(|_| name == "HOME");
        assert_eq!(choose(None, home, false).unwrap(), Path::new("/of/HOME/.local/state/strongroom"));
        assert_eq!(choose(None, |_| None, false), None);
    }
}
