//! The progress of a long command, on stderr: a bar on a terminal, otherwise an occasional line.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::Output;

/// The count of lines until the end.
const LINES: u64 = 10;

/// The progress of one command.
pub struct Meter {
    total_bytes: u64,
    shown: Shown,
}

enum Shown {
    Nothing,
    Bar(ProgressBar),
    Lines { output: Output, verb: &'static str, last: u64 },
}

impl Meter {
    /// Starts at zero of `total_bytes`. `verb` names the action, such as "importing".
    pub fn start(output: &Output, verb: &'static str, total_bytes: u64) -> Self {
        let shown = if output.is_json() {
            Shown::Nothing
        } else if std::io::stderr().is_terminal() {
            Shown::Bar(bar(verb, total_bytes))
        } else {
            Shown::Lines { output: *output, verb, last: 0 }
        };
        Self { total_bytes, shown }
    }

    /// Updates the count of bytes done.
    pub fn at(&mut self, bytes: u64) {
        match &mut self.shown {
            Shown::Nothing => {}
            Shown::Bar(bar) => bar.set_position(bytes),
            Shown::Lines { output, verb, last } => {
                let part =
                    (u128::from(bytes) * u128::from(LINES) / u128::from(self.total_bytes.max(1))) as u64;
                if part > *last {
                    *last = part;
                    output.remark(&format!("{verb}: {} %", part * 100 / LINES));
                }
            }
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

/// About how long something takes, for people.
pub fn display_about(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

fn bar(verb: &'static str, total_bytes: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total_bytes), ProgressDrawTarget::stderr());
    // A mistake in the template would show in the first run; the default bar is a sufficient
    // fallback.
    let template = "{msg} [{bar:40}] {percent:>3} %  {binary_bytes_per_sec}, {eta} left";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style.progress_chars("=> "));
    bar.set_message(verb);
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}
