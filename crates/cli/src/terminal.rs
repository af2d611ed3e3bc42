//! Asks the person at the terminal. The terminal is opened by its own name, so that stdin and
//! stdout can be pipes.

use std::fs::File;
use std::io::{self, Read, Write};

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use strongroom_keys::PASSPHRASE_BYTES_MAX;
use strongroom_memory::secret::{SecretBytes, SecretError};
use thiserror::Error;

/// The reasons why there is no answer.
#[derive(Debug, Error)]
pub enum TerminalError {
    /// Control-C, or the end of the terminal.
    #[error("interrupted")]
    Interrupted,
    /// The terminal failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// There is no memory for the input.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

/// The terminal that started the program.
pub struct Terminal {
    file: File,
}

impl Terminal {
    /// Opens the terminal; `None` if there is none, or if the program is in the background.
    pub fn open() -> Option<Self> {
        let file = File::options().read(true).write(true).open("/dev/tty").ok()?;
        // Asking would stop a program in the background.
        let foreground = rustix::termios::tcgetpgrp(&file).ok()?;
        (foreground == rustix::process::getpgrp()).then_some(Self { file })
    }

    /// Asks a yes-or-no question; every other answer than a clear yes is no.
    pub fn confirm(&mut self, question: &str) -> Result<bool, TerminalError> {
        let answer = self.ask(&format!("{question} [y/N] "), Echo::Shown)?;
        let answer = answer.expose().trim_ascii().to_ascii_lowercase();
        Ok(matches!(answer.as_slice(), b"y" | b"yes"))
    }

    /// Asks for a passphrase without showing it. The input is read directly into secret memory.
    pub fn ask_passphrase(&mut self, prompt: &str) -> Result<SecretBytes, TerminalError> {
        self.ask(&format!("{prompt}: "), Echo::Hidden)
    }

    fn ask(&mut self, prompt: &str, echo: Echo) -> Result<SecretBytes, TerminalError> {
        let typed = {
            // Before the question is shown, because an answer may follow at once.
            let quiet = Quiet::new(&self.file)?;
            (&self.file).write_all(prompt.as_bytes())?;
            read_typed(&quiet, |shown| match echo {
                Echo::Shown => (&self.file).write_all(shown),
                Echo::Hidden => Ok(()),
            })
        };
        writeln!(self.file)?;
        typed
    }
}

/// Whether an answer is shown while it is typed.
#[derive(Clone, Copy)]
enum Echo {
    Shown,
    Hidden,
}

/// The terminal with echo, line editing and signals turned off; restored on drop. This program does
/// the line editing meanwhile, so that no line stays in the kernel's buffer, and handles Control-C,
/// so that the echo is always restored.
struct Quiet<'a> {
    file: &'a File,
    before: Termios,
}

impl<'a> Quiet<'a> {
    fn new(file: &'a File) -> io::Result<Self> {
        let before = tcgetattr(file)?;
        let mut quiet = before.clone();
        quiet.local_modes -= LocalModes::ECHO | LocalModes::ECHONL | LocalModes::ICANON | LocalModes::ISIG;
        quiet.special_codes[SpecialCodeIndex::VMIN] = 1;
        quiet.special_codes[SpecialCodeIndex::VTIME] = 0;
        // Input from before the question is not its answer.
        tcsetattr(file, OptionalActions::Flush, &quiet)?;
        Ok(Self { file, before })
    }
}

impl Read for &Quiet<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut file = self.file;
        file.read(buffer)
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to restore.
        let _ = tcsetattr(self.file, OptionalActions::Flush, &self.before);
    }
}

/// The terminal on stdin in raw mode: every key is passed on unchanged. Restored on drop.
pub struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    /// `None` if stdin is not a terminal.
    pub fn of_stdin() -> Option<Self> {
        let stdin = io::stdin();
        let before = tcgetattr(&stdin).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Now, &raw).ok()?;
        Some(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to restore.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// Reads keys up to the end of the line. `echo` gets the bytes that show them.
fn read_typed(
    mut keys: impl Read,
    mut echo: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<SecretBytes, TerminalError> {
    const RUB_OUT: &[u8] = b"\x08 \x08";
    const INTERRUPT: u8 = 0x03;
    const END: u8 = 0x04;
    const BACKSPACE: u8 = 0x08;
    const ERASE_LINE: u8 = 0x15;
    const QUIT: u8 = 0x1c;
    const DELETE: u8 = 0x7f;
    let mut line = SecretBytes::zeroed(PASSPHRASE_BYTES_MAX + 1)?;
    let mut key = SecretBytes::zeroed(1)?;
    let mut length = 0;
    loop {
        match keys.read(key.expose_mut()) {
            Ok(0) => return Err(TerminalError::Interrupted),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        }
        match key.expose()[0] {
            b'\r' | b'\n' => break,
            END if length > 0 => break,
            INTERRUPT | QUIT | END => return Err(TerminalError::Interrupted),
            ERASE_LINE => {
                echo(&RUB_OUT.repeat(columns(&line.expose()[..length])))?;
                length = 0;
            }
            // Delete a whole UTF-8 character: its continuation bytes start with the bits 10.
            BACKSPACE | DELETE => {
                while length > 0 {
                    length -= 1;
                    if line.expose()[length] & 0xC0 != 0x80 {
                        echo(&RUB_OUT.repeat(columns(&line.expose()[length..=length])))?;
                        break;
                    }
                }
            }
            // A longer input is reported as too long, not truncated.
            byte if length < line.len() => {
                line.expose_mut()[length] = byte;
                length += 1;
                // No control characters.
                if !byte.is_ascii_control() {
                    echo(&[byte])?;
                }
            }
            _ => {}
        }
    }
    let mut typed = SecretBytes::zeroed(length)?;
    typed.expose_mut().copy_from_slice(&line.expose()[..length]);
    Ok(typed)
}

/// The count of visible characters in these bytes of UTF-8.
fn columns(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| *byte & 0xC0 != 0x80 && !byte.is_ascii_control()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(keys: &[u8]) -> Option<Vec<u8>> {
        read_typed(keys, |_| Ok(())).ok().map(|line| line.expose().to_vec())
    }

    #[test]
    fn what_is_shown_is_what_was_typed() {
        let mut shown = Vec::new();
        let echo = |bytes: &[u8]| {
            shown.extend_from_slice(bytes);
            Ok(())
        };
        read_typed(&b"ni\x7fo\x1b\x15yes\n"[..], echo).unwrap();
        assert_eq!(shown, b"ni\x08 \x08o\x08 \x08\x08 \x08yes");
    }

    #[test]
    fn keys_are_edited_as_at_a_prompt() {
        assert_eq!(typed(b"horse\r"), Some(b"horse".to_vec()));
        assert_eq!(typed(b"horsf\x7fe\n"), Some(b"horse".to_vec()));
        assert_eq!(typed("hör\u{7f}\u{7f}\u{7f}\u{7f}x\n".as_bytes()), Some(b"x".to_vec()));
        assert_eq!(typed(b"wrong\x15right\n"), Some(b"right".to_vec()));
        assert_eq!(typed(b"\n"), Some(Vec::new()));
        assert_eq!(typed(b"ends\x04"), Some(b"ends".to_vec()));
    }

    #[test]
    fn giving_up_is_no_passphrase() {
        assert_eq!(typed(b"half\x03"), None);
        assert_eq!(typed(b"\x04"), None);
        assert_eq!(typed(b"half"), None);
    }

    #[test]
    fn an_endless_line_is_noticed_as_too_long() {
        let mut keys = vec![b'x'; 5000];
        keys.push(b'\n');
        assert_eq!(typed(&keys).map(|line| line.len()), Some(PASSPHRASE_BYTES_MAX + 1));
    }
}
