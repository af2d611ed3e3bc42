//! Messages for people.

/// The message without the kernel's error numbers, which add nothing to the errors' names.
pub fn without_numbers(message: &str) -> String {
    let mut kept = String::with_capacity(message.len());
    let mut rest = message;
    while let Some((before, after)) = rest.split_once(" (os error ") {
        kept.push_str(before);
        rest = after.trim_start_matches(|digit: char| digit.is_ascii_digit());
        rest = rest.strip_prefix(')').unwrap_or(rest);
    }
    kept + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_are_left_out() {
        let text = "cannot open a: Permission denied (os error 13); and b (os error 2)";
        assert_eq!(without_numbers(text), "cannot open a: Permission denied; and b");
        assert_eq!(without_numbers("nothing of that kind"), "nothing of that kind");
    }
}
