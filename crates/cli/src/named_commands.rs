//! Every command of this program that messages, help, comments and documents mention must be valid.
//! These tests fail if a renamed command or flag is still mentioned.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Arg, Command};

use crate::program::command_line;

/// The examples at the end of each command's help are complete: they are valid as they stand.
#[test]
fn every_example_of_the_help_is_a_command_line() {
    let (mut examples, mut wrong) = (0, Vec::new());
    visit(&mut built(), &mut |command| {
        let Some(help) = command.get_after_help().or_else(|| command.get_after_long_help()) else { return };
        let help = help.to_string().replace("\\\n", " ");
        for line in help.lines().filter(|line| line.starts_with("  ")) {
            for words in commands_of(line) {
                examples += 1;
                let refused = command_line().try_get_matches_from(&words).err().filter(is_refusal);
                // An example names an account of the reader's machine.
                let refused =
                    refused.filter(|error| !error.to_string().contains("this machine has no account"));
                wrong.extend(refused.map(|error| format!("{}: {line}: {error}", command.get_name())));
            }
        }
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(examples > 100, "only {examples} examples were found");
}

/// Documents show complete commands in their blocks; placeholders are in capitals.
#[test]
fn every_command_of_the_documents_is_a_command_line() {
    let (mut commands, mut wrong) = (0, Vec::new());
    for path in files_under("docs", "md").into_iter().chain([repository().join("README.md")]) {
        let text = fs::read_to_string(&path).unwrap();
        for line in blocks_of(&text).replace("\\\n", " ").lines().filter(|line| !is_label(line.trim())) {
            for words in commands_of(line) {
                commands += 1;
                let refused = lenient().try_get_matches_from(&words).err().filter(is_refusal);
                wrong.extend(refused.map(|error| format!("{}: {line}: {error}", path.display())));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(commands > 50, "only {commands} commands were found");
}

/// A sentence may mention a command without required arguments; those that it mentions must exist.
#[test]
fn every_command_that_a_sentence_names_is_there() {
    let mut named = 0;
    let sources =
        files_under("crates", "rs").into_iter().filter(|path| path.iter().any(|part| part == "src"));
    let documents = files_under("docs", "md").into_iter().chain([repository().join("README.md")]);
    let mut wrong = Vec::new();
    for path in sources.chain(documents).filter(|path| !is_about_others(path)) {
        for mention in mentions_of(&unwrapped(&fs::read_to_string(&path).unwrap())) {
            for words in commands_of(&mention) {
                named += 1;
                let refused = lenient().try_get_matches_from(&words).err().filter(is_refusal);
                let refused = refused.filter(|error| !misses_something(error.kind()));
                wrong.extend(refused.map(|error| format!("{}: `{mention}`: {error}", path.display())));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(named > 150, "only {named} commands were found");
}

#[test]
fn what_is_not_there_is_noticed() {
    let refused = |mention: &str| {
        let words = commands_of(mention).remove(0);
        let error = lenient().try_get_matches_from(words).err().filter(is_refusal);
        error.filter(|error| !misses_something(error.kind())).is_some()
    };
    assert!(!refused("strongroom datastore contents {name}"));
    assert!(refused("strongroom datastore rename {name}"));
    assert!(!refused("strongroom volume rekey --kek"));
    assert!(refused("strongroom volume rekey --kekk"));
    assert!(refused("strongroom vm list a b c"));
    let mentions =
        mentions_of("see `strongroom key list`, 'strongroom vm list' and `vm show`; `key` is none");
    assert_eq!(mentions, ["strongroom key list", "strongroom vm show", "strongroom vm list"]);
    let line = "sudo A=1 strongroom vm start 'a b' 3<in >out && strongroom task list | jq . # strongroom x";
    let words: &[&[&str]] = &[&["strongroom", "vm", "start", "a b"], &["strongroom", "task", "list"]];
    assert_eq!(commands_of(line), words);
}

fn built() -> Command {
    let mut program = command_line();
    program.build();
    program
}

fn visit(command: &mut Command, seen: &mut impl FnMut(&Command)) {
    seen(command);
    for inner in command.get_subcommands_mut().filter(|inner| inner.get_name() != "help") {
        visit(inner, seen);
    }
}

/// The program's command line, with any text accepted as a value, because sentences and format
/// strings use placeholders such as `{name}`, `N` and `SIZE`.
fn lenient() -> Command {
    fn any_value(argument: Arg) -> Arg {
        if argument.get_action().takes_values() {
            let argument = argument.value_parser(clap::value_parser!(std::ffi::OsString));
            // A sentence may mention an option without a value.
            if argument.is_positional() { argument } else { argument.num_args(0..=1) }
        } else {
            argument
        }
    }
    fn relax(command: Command) -> Command {
        let names: Vec<_> = command.get_subcommands().map(|inner| inner.get_name().to_owned()).collect();
        let command = command.mut_args(any_value);
        names.into_iter().fold(command, |command, name| command.mut_subcommand(name, relax))
    }
    relax(command_line())
}

/// Help and version are not errors.
fn is_refusal(error: &clap::Error) -> bool {
    !matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
}

fn misses_something(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    )
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

fn files_under(place: &str, extension: &str) -> Vec<PathBuf> {
    let (mut found, mut unread) = (Vec::new(), vec![repository().join(place)]);
    while let Some(directory) = unread.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                unread.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// This file mentions commands that do not exist, and the lab has its own program.
fn is_about_others(path: &Path) -> bool {
    path.ends_with("named_commands.rs") || path.starts_with(repository().join("crates/proof/lab"))
}

/// A source or document without its line breaks: strings continue after a backslash, comments and
/// sentences on the next line.
fn unwrapped(text: &str) -> String {
    let mut whole = String::new();
    for line in text.lines().map(str::trim) {
        let line = ["///", "//!", "//"].iter().find_map(|mark| line.strip_prefix(mark)).unwrap_or(line);
        match whole.strip_suffix('\\').map(str::len) {
            Some(length) => whole.truncate(length),
            None => whole.push(' '),
        }
        whole.push_str(line.trim_start());
    }
    whole
}

/// The blocks of commands of a document.
fn blocks_of(text: &str) -> String {
    text.split("```").skip(1).step_by(2).map(|block| block.split_once('\n').unwrap_or_default().1).collect()
}

/// The commands of this program between backquotes or quotes; the program's name may be omitted if
/// the command's group identifies it.
fn mentions_of(text: &str) -> Vec<String> {
    let groups: Vec<String> = command_line()
        .get_subcommands()
        .filter(|group| group.has_subcommands())
        .map(|group| group.get_name().to_owned())
        .collect();
    let mut mentions = Vec::new();
    for quote in ['`', '\''] {
        for (start, _) in text.match_indices(quote) {
            let span = &text[start + 1..];
            let Some(span) = span.find(quote).map(|end| &span[..end]) else { continue };
            let mut words = span.split(' ');
            match (words.next(), words.next()) {
                (Some("strongroom"), _) if is_label(span) => {}
                (Some("strongroom"), Some(second))
                    if second.starts_with(|c: char| c.is_ascii_lowercase()) =>
                {
                    mentions.push(span.to_owned());
                }
                (Some(group), Some(_)) if quote == '`' && groups.iter().any(|known| known == group) => {
                    mentions.push(format!("strongroom {span}"));
                }
                _ => {}
            }
        }
    }
    mentions
}

/// Labels of formats and keys look like commands; they never change, because keys and tags depend
/// on them.
fn is_label(span: &str) -> bool {
    const LABELS: [&str; 7] = [
        "strongroom block",
        "strongroom empty",
        "strongroom marks",
        "strongroom there",
        "strongroom clear",
        "strongroom grant 1",
        "strongroom audit head 1",
    ];
    span.contains(" v1") || span.starts_with("strongroom key server") || LABELS.contains(&span)
}

/// The commands of this program in a line of shell, without the shell's own syntax.
fn commands_of(line: &str) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    let mut words: Vec<String> = Vec::new();
    let mut word = String::new();
    let (mut quoted, mut begun) = (None, false);
    let mut letters = line.chars().peekable();
    let end_word = |word: &mut String, begun: &mut bool, words: &mut Vec<String>| {
        if std::mem::take(begun) {
            words.push(std::mem::take(word));
        }
    };
    let mut end_command = |words: &mut Vec<String>| {
        let all = std::mem::take(words);
        let start = all.iter().position(|word| word == "strongroom").unwrap_or(all.len());
        // The name alone refers to a service or a user, not to a command.
        let is_command =
            |word: &String| word.starts_with(|letter: char| letter.is_ascii_lowercase() || letter == '-');
        if all.get(start + 1).is_some_and(is_command) {
            commands.push(without_redirections(&all[start..]));
        }
    };
    while let Some(letter) = letters.next() {
        match (quoted, letter) {
            (Some(quote), _) if letter == quote => quoted = None,
            (Some(_), _) => word.push(letter),
            (None, '\'' | '"') => (quoted, begun) = (Some(letter), true),
            (None, '#') if !begun => break,
            (None, '&') if word.ends_with('>') => word.push(letter),
            (None, '|' | ';' | '&' | '(' | ')') => {
                end_word(&mut word, &mut begun, &mut words);
                end_command(&mut words);
            }
            (None, '\\') => word.extend(letters.next()),
            (None, letter) if letter.is_whitespace() => end_word(&mut word, &mut begun, &mut words),
            (None, letter) => {
                word.push(letter);
                begun = true;
            }
        }
    }
    end_word(&mut word, &mut begun, &mut words);
    end_command(&mut words);
    commands
}

fn without_redirections(words: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mark = word.trim_start_matches(|letter: char| letter.is_ascii_digit());
        match mark {
            // The next word is the file.
            "<" | ">" | ">>" => drop(words.next()),
            _ if mark.starts_with(['<', '>']) || word == "..." => {}
            _ => kept.push(word.clone()),
        }
    }
    kept
}
