//! `strongroom completions`: a completion script, from the same source as the command line.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use clap_complete::Shell;

use crate::error::CliError;
use crate::program::command_line;

/// The arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  source <(strongroom completions bash)
  strongroom completions fish > ~/.config/fish/completions/strongroom.fish")]
pub struct CompletionsArguments {
    /// Shell to generate the script for
    shell: CompletedShell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CompletedShell {
    Bash,
    Zsh,
    Fish,
}

impl CompletionsArguments {
    /// Runs the command.
    pub fn run(&self) -> Result<ExitCode, CliError> {
        let shell = match self.shell {
            CompletedShell::Bash => Shell::Bash,
            CompletedShell::Zsh => Shell::Zsh,
            CompletedShell::Fish => Shell::Fish,
        };
        // Generate it in memory first: the generator panics if writing fails.
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command_line(), "strongroom", &mut script);
        io::stdout().lock().write_all(&script).map_err(CliError::Output)?;
        Ok(ExitCode::SUCCESS)
    }
}
