//! Documented commands, each with its outcome.

use std::path::Path;

use strongroom_system_tests::Process;

use super::user::{ENDS_WITHIN, User};

/// The outcome of a command.
pub enum Call {
    /// It ends with status 0.
    Runs,
    /// It keeps running; a line that begins like this says that it is ready.
    Stays { ready: String },
    /// As `Stays`, and it is ended at once.
    Serves { ready: String },
    /// It runs at a terminal.
    AtTerminal { asks: Vec<(String, String)>, shows: Option<(String, &'static str)> },
    /// It is refused, with this text in its message.
    Refused { says: String },
    /// It is not run.
    NotRun,
}

/// A command of a plan.
pub struct Step {
    pub command: String,
    before: Vec<String>,
    pub call: Call,
}

/// Control-], which ends a console.
const ESCAPE: &str = "\u{1d}";
/// Control-C.
const INTERRUPT: &str = "\u{3}";

impl Step {
    /// Reads the steps of a file of `first_hour`. Blocks for which `is_text` is true are for
    /// readers only.
    pub fn read_all(name: &str, is_text: impl Fn(&str) -> bool) -> Vec<Self> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("first_hour").join(name);
        let text = std::fs::read_to_string(path).unwrap();
        let blocks = text.split("\n\n").map(|block| block.trim_matches('\n'));
        blocks
            .filter(|block| !block.is_empty() && !block.starts_with(' ') && !is_text(block))
            .map(Self::read)
            .collect()
    }

    fn read(block: &str) -> Self {
        let mut lines = block.lines();
        let command = lines.next().unwrap().to_owned();
        let (mut before, mut asks, mut call) = (Vec::new(), Vec::new(), None);
        for line in lines.map(str::trim) {
            let (word, rest) = line.split_once(": ").unwrap_or((line, ""));
            let rest = rest.to_owned();
            match word {
                "before" => before.push(rest),
                "runs" => call = Some(Call::Runs),
                "stays, and says" => call = Some(Call::Stays { ready: rest }),
                "serves, and says" => call = Some(Call::Serves { ready: rest }),
                "is refused" => call = Some(Call::Refused { says: rest }),
                "shows" | "shows, until Control-C" => {
                    let key = if word == "shows" { ESCAPE } else { INTERRUPT };
                    call = Some(Call::AtTerminal { asks: Vec::new(), shows: Some((rest, key)) });
                }
                "not run" => call = Some(Call::NotRun),
                "asks" => {
                    let end = rest.rfind("[y/N] ").map(|at| at + "[y/N] ".len());
                    let end = end.or_else(|| rest.rfind(": ").map(|at| at + 2)).unwrap();
                    asks.push((rest[..end].to_owned(), rest[end..].to_owned()));
                }
                other => panic!("{command}: what is '{other}'?"),
            }
        }
        if !asks.is_empty() {
            let shows = match call {
                Some(Call::AtTerminal { shows, .. }) => shows,
                None => None,
                Some(_) => panic!("{command}: it is either asked, or not"),
            };
            call = Some(Call::AtTerminal { asks, shows });
        }
        let call = call.unwrap_or_else(|| panic!("{command}: what becomes of it?"));
        Self { command, before, call }
    }

    /// Whether it is run at all.
    pub fn is_run(&self) -> bool {
        !matches!(self.call, Call::NotRun)
    }

    /// Runs it. Returns the process if it keeps running.
    pub fn take(&self, user: &mut User<'_>) -> Option<Process> {
        let Self { command, before, call } = self;
        for line in before {
            user.runs(line).success();
        }
        match call {
            Call::Runs => drop(user.runs(command).success()),
            Call::Stays { ready } => return Some(user.starts(command, ready)),
            Call::Serves { ready } => {
                let status = user.starts(command, ready).terminate(ENDS_WITHIN);
                assert!(status.success(), "{command}: {status}");
            }
            Call::Refused { says } => {
                let refused = user.runs(command);
                let told = format!("{}{}", refused.stdout, refused.stderr);
                assert!(!refused.status.success() && told.contains(says), "{command}: {told}");
            }
            Call::AtTerminal { asks, shows } => {
                // The shell survives a Control-C, and ends with the command's status.
                let mut terminal = user.runs_at_terminal(&format!("trap : INT; {command}"));
                for (question, keys) in asks {
                    terminal.shows(&user.meant(question));
                    terminal.types(&format!("{keys}\r"));
                }
                if let Some((text, key)) = shows {
                    terminal.shows(&user.meant(text));
                    terminal.types(key);
                }
                let (status, shown) = terminal.ends();
                assert!(status.success(), "{command}: {shown}");
            }
            Call::NotRun => {}
        }
        None
    }
}
