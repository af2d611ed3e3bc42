/// The text quoted as one word of a shell, for commands that a person is told to type.
pub fn shell_word(text: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_./:=,@%+".contains(character);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_one_word() {
        assert_eq!(shell_word("disks/vm-1.qcow2"), "disks/vm-1.qcow2");
        assert_eq!(shell_word("my disk.qcow2"), "'my disk.qcow2'");
        assert_eq!(shell_word("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(shell_word(""), "''");
    }
}
