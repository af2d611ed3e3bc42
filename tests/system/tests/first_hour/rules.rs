//! The rules for every refusal: it names the object and the next step, does not contradict itself,
//! and exposes no internals.

use std::collections::BTreeSet;

use super::user::User;

/// The first words of a next step, after a semicolon or colon; a command in backquotes is one, too.
const STEPS: [&str; 44] = [
    "activate", "add", "ask", "choose", "come", "convert", "decrypt", "delete", "detach", "end", "finish",
    "free", "get", "give", "go", "import", "install", "leave", "make", "move", "name", "open", "put", "read",
    "remove", "restore", "resume", "run", "say", "see", "set", "shut", "start", "stop", "take", "try",
    "unmount", "use", "wait", "write", "is", "mount", "detach", "check",
];

/// Texts that only a programmer understands.
const INSIDES: [&str; 14] = [
    "{\"", "Some(", "None", "Err(", "Ok(", "Error {", "os error", "errno", "found `", "Uuid", "::",
    "panicked", "PathBuf", "\\\"",
];

/// Returns the rules that `told`, the message of a refused command, breaks.
pub fn broken_by(object: &str, told: &str, user: &User<'_>) -> Vec<String> {
    let message = told.split_once("error: ").map_or(told, |(_, message)| message);
    let mut broken = Vec::new();
    if !message.contains(object) {
        broken.push(format!("it does not name '{object}'"));
    }
    let insides = INSIDES.iter().filter(|inside| message.contains(**inside));
    broken.extend(insides.map(|inside| format!("nobody understands '{inside}'")));
    if !names_a_step(message) {
        broken.push("it does not say what to do".to_owned());
    }
    broken.extend(contradiction(message).map(|letter| format!("'{letter}' is forbidden and allowed")));
    for command in commands_in(message) {
        if !user.runs(&format!("strongroom {command} --help")).status.success() {
            broken.push(format!("there is no command `strongroom {command}`"));
        }
    }
    broken
}

/// Whether a part of it names a next step.
fn names_a_step(message: &str) -> bool {
    // A user who declined has nothing left to do.
    if message.trim() == "nothing was changed" || message.contains("nothing was created") {
        return true;
    }
    let parts = message.split([';', ':', ',', '.', '\n']).map(str::trim_start);
    let mut steps = parts.filter_map(|part| {
        part.split_whitespace().find(|word| !["or", "and", "then", "first"].contains(word))
    });
    steps.any(|word| word.starts_with("`strongroom") || STEPS.contains(&word.to_lowercase().as_str()))
        || message.contains("try '--help'")
}

/// A character that the text both forbids and allows.
fn contradiction(message: &str) -> Option<char> {
    message.match_indices("' cannot").find_map(|(end, _)| {
        let mut before = message[..end].chars().rev();
        let character = before.next()?;
        let quoted = format!("'{character}'");
        (before.next() == Some('\'') && message[end + 1..].contains(&quoted)).then_some(character)
    })
}

/// The commands in the advice, without their arguments.
fn commands_in(message: &str) -> BTreeSet<String> {
    let is_plain = |word: &&str| {
        word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-') && !word.starts_with('-')
    };
    message
        .split("`strongroom ")
        .skip(1)
        .filter_map(|rest| rest.split_once('`'))
        .map(|(command, _)| command.split(' ').take(2).take_while(is_plain).collect::<Vec<_>>().join(" "))
        .collect()
}

#[test]
fn what_breaks_a_rule_is_noticed() {
    assert!(names_a_step("there is no VM a; `strongroom vm list` shows what there is"));
    assert!(names_a_step("the datastore is full: free some space"));
    assert!(!names_a_step("the key is revoked"));
    assert_eq!(contradiction("'.' cannot be in a name here; letters, digits, '.' and '-' can"), Some('.'));
    assert_eq!(contradiction("'.web' cannot be a name: it begins with '.'"), None);
    let advised = "see `strongroom datastore contents {name}` or `strongroom doctor`";
    assert_eq!(commands_in(advised), ["datastore contents", "doctor"].map(str::to_owned).into());
}
