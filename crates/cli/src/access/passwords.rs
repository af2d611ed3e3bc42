//! Passwords and codes: typed without being shown, or read from a descriptor. They never come from
//! the command line or the environment, which others can read.

use clap::Args;
use strongroom_api::Name;
use strongroom_api::access::Password;
use strongroom_api::limits::{PASSWORD_BYTES_MAX, PASSWORD_BYTES_MIN};
use strongroom_memory::secret::SecretBytes;

use crate::error::CliError;
use crate::keys::{asked, read_secret};
use crate::terminal::Terminal;

/// The new password of a user.
#[derive(Debug, Args)]
pub struct NewPasswordArguments {
    /// Read the new password from file descriptor N, as in --password-fd 3 3<FILE; one trailing
    /// line end is removed [default: ask at the terminal]
    #[arg(long, value_name = "N")]
    password_fd: Option<u32>,
}

/// The present password of the user who changes its own account.
#[derive(Debug, Args)]
pub struct PresentPasswordArguments {
    /// Read your present password from file descriptor N [default: ask at the terminal]
    #[arg(long, value_name = "N")]
    present_password_fd: Option<u32>,
}

impl NewPasswordArguments {
    /// The new password. A person at a terminal is asked twice.
    pub fn get(&self, user: &Name) -> Result<Password, CliError> {
        if let Some(descriptor) = self.password_fd {
            let typed = read_secret(descriptor, "--password-fd")?;
            expect_length(user, &typed)?;
            return text(typed, "the password");
        }
        let mut terminal = terminal(&format!("the new password of {user}"), "--password-fd")?;
        let first = asked(terminal.ask_passphrase(&format!("New password of {user}")))?;
        // Refuse a short one before it is repeated.
        expect_length(user, &first)?;
        let second = asked(terminal.ask_passphrase("The same again"))?;
        if first == second {
            text(first, "the password")
        } else {
            Err(CliError::PasswordsDiffer { user: user.clone() })
        }
    }
}

impl PresentPasswordArguments {
    /// The present password.
    pub fn get(&self, user: &Name) -> Result<Password, CliError> {
        let prompt = format!("Present password of {user}");
        once(self.present_password_fd, "--present-password-fd", &prompt)
    }
}

/// Asks once for a secret, or reads it from the descriptor that an option names.
pub fn once(descriptor: Option<u32>, option: &'static str, prompt: &str) -> Result<Password, CliError> {
    let typed = match descriptor {
        Some(descriptor) => read_secret(descriptor, option)?,
        None => asked(terminal(&lower_case(prompt), option)?.ask_passphrase(prompt))?,
    };
    text(typed, &lower_case(prompt))
}

/// The prompt in a sentence.
fn lower_case(prompt: &str) -> String {
    let mut letters = prompt.chars();
    let first = letters.next().map(|first| first.to_lowercase().to_string()).unwrap_or_default();
    format!("the {first}{}", letters.as_str())
}

fn terminal(what: &str, option: &'static str) -> Result<Terminal, CliError> {
    Terminal::open().ok_or_else(|| {
        CliError::Usage(format!(
            "nobody is at a terminal to be asked for {what}; give a descriptor that it is read from, as in {option} 3 3<FILE"
        ))
    })
}

fn expect_length(user: &Name, password: &SecretBytes) -> Result<(), CliError> {
    let length = password.len();
    if (PASSWORD_BYTES_MIN..=PASSWORD_BYTES_MAX).contains(&length) {
        return Ok(());
    }
    Err(CliError::Usage(format!(
        "a password has {PASSWORD_BYTES_MIN} to {PASSWORD_BYTES_MAX} bytes, and that for {user} has {length}; choose another one"
    )))
}

/// A secret as the API takes it.
fn text(secret: SecretBytes, what: &str) -> Result<Password, CliError> {
    let text = std::str::from_utf8(secret.expose());
    let text = text.map_err(|_| CliError::Usage(format!("{what} is not UTF-8; type it as text")))?;
    Ok(text.to_owned().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(bytes: &[u8]) -> SecretBytes {
        SecretBytes::from_slice_and_wipe(&mut bytes.to_vec()).unwrap()
    }

    #[test]
    fn a_short_password_is_refused_and_not_repeated_in_the_refusal() {
        let user: Name = "ada".parse().unwrap();
        let refused = expect_length(&user, &secret(b"hunter2")).unwrap_err().to_string();
        assert!(refused.contains("12 to 1024") && refused.contains("ada") && !refused.contains("hunter2"));
        assert!(expect_length(&user, &secret(b"correct horse")).is_ok());
        assert!(expect_length(&user, &secret(&[b'x'; 1025])).is_err());
    }

    #[test]
    fn a_secret_that_is_no_text_is_not_shown() {
        let refused = text(secret(b"p\xffssw0rd"), "the password").unwrap_err().to_string();
        assert_eq!(refused, "the password is not UTF-8; type it as text");
    }
}
