//! `strongroom man`: the manual pages, from the same source as the command line.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use strongroom_files::FileError;

use crate::error::CliError;
use crate::output::Output;
use crate::program::command_line;

/// The arguments of `man`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  strongroom man ~/.local/share/man/man1")]
pub struct ManArguments {
    /// Directory for the pages; created if it is missing
    directory: PathBuf,
}

#[derive(Serialize)]
struct Written {
    directory: PathBuf,
    pages: Vec<String>,
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "wrote {} manual pages to {}", self.pages.len(), self.directory.display())
    }
}

impl ManArguments {
    /// Writes a page for the program and one for each command.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        let failed = |error| {
            CliError::File(FileError { action: "write manual pages to", path: self.directory.clone(), error })
        };
        std::fs::create_dir_all(&self.directory).map_err(failed)?;
        let mut program = command_line();
        program.build();
        let mut pages = Vec::new();
        self.write(&program, &mut pages).map_err(failed)?;
        output.answer(&Written { directory: self.directory.clone(), pages })?;
        Ok(ExitCode::SUCCESS)
    }

    fn write(&self, command: &clap::Command, pages: &mut Vec<String>) -> std::io::Result<()> {
        let page = clap_mangen::Man::new(command.clone());
        let name = page.get_filename();
        let mut content = Vec::new();
        page.render(&mut content)?;
        std::fs::write(self.directory.join(&name), content)?;
        pages.push(name);
        let is_described = |command: &&clap::Command| command.get_name() != "help" && !command.is_hide_set();
        let described = command.get_subcommands().filter(is_described);
        for command in described {
            self.write(command, pages)?;
        }
        Ok(())
    }
}
