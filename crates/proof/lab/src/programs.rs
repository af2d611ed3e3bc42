//! Running programs: reports of their failures, and passing secrets to them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use thiserror::Error;

/// Why running a program failed. Each names the server, program or file.
#[derive(Debug, Error)]
pub enum ProgramError {
    /// A server ended, or did not start.
    #[error("{server} ended with {status}{}", its_log(said))]
    Ended {
        /// The server.
        server: String,
        /// The exit status.
        status: ExitStatus,
        /// The end of what it printed.
        said: String,
    },
    /// A server took too long.
    #[error("{server} did not {what} within {within:?}{}", its_log(said))]
    Late {
        /// The server.
        server: String,
        /// The attempted action.
        what: &'static str,
        /// How long the lab waited.
        within: Duration,
        /// The end of what it printed.
        said: String,
    },
    /// A server failed to do its client's request.
    #[error("{server}: {error}{}", its_log(said))]
    Client {
        /// The server.
        server: String,
        /// The client's error.
        error: Box<dyn std::error::Error + Send + Sync>,
        /// The end of what it printed.
        said: String,
    },
    /// A program cannot be run.
    #[error("cannot run {program}: {error}; {next}")]
    Program {
        /// The program.
        program: String,
        /// The system's error.
        error: io::Error,
        /// The advice to the user.
        next: &'static str,
    },
    /// A program reported a failure.
    #[error("{command} failed with {status}: {said}")]
    Command {
        /// The command line.
        command: String,
        /// The exit status.
        status: ExitStatus,
        /// Its output.
        said: String,
    },
    /// A file or directory.
    #[error("cannot {action} {path}: {error}")]
    File {
        /// The attempted action.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A process cannot be queried or signalled.
    #[error("cannot {action} process {id} of {server}: {error}; measuring needs root")]
    Process {
        /// The attempted action.
        action: &'static str,
        /// The process id.
        id: u32,
        /// Of which server.
        server: String,
        /// The system's error.
        error: io::Error,
    },
    /// Stopped by a signal.
    #[error("a signal asked for the end; everything that was started has been ended")]
    Signal,
}

/// The end of a message, with a program's output.
pub fn its_log(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!("; it said: {said}") }
}

/// A path in QEMU's options, where a comma must be escaped.
pub fn option_value(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Makes a secret that only its owner can read: 64 hexadecimal digits, which serve as a key or as a
/// passphrase.
pub fn make_secret(path: &Path) -> Result<(), ProgramError> {
    let made = || {
        let mut bytes = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(digits.as_bytes())
    };
    made().map_err(|error| ProgramError::File { action: "make", path: path.to_owned(), error })
}

/// Runs a command to its end; returns its output.
pub fn run(command: &mut Command) -> Result<Vec<u8>, ProgramError> {
    let line = line_of(command);
    let next = "install it, or say where it is";
    let output =
        command.output().map_err(|error| ProgramError::Program { program: line.clone(), error, next })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(ProgramError::Command { command: line, status: output.status, said });
    }
    Ok(output.stdout)
}

/// A command line, for messages.
pub fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_in_a_path_is_no_option() {
        assert_eq!(option_value(Path::new("/a,b/c")), "/a,,b/c");
    }

    #[test]
    fn a_failed_command_is_told_of_with_its_words() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo broken >&2; exit 2"]);
        let text = run(&mut command).unwrap_err().to_string();
        assert_eq!(text, "sh -c echo broken >&2; exit 2 failed with exit status: 2: broken");
        let text = run(&mut Command::new("/no/such/program")).unwrap_err().to_string();
        assert!(
            text.starts_with("cannot run /no/such/program: ") && text.ends_with("say where it is"),
            "{text}"
        );
    }

    #[test]
    fn a_secret_is_its_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        make_secret(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read(&path).unwrap().len(), 64);
        assert!(make_secret(&path).is_err());
    }
}
