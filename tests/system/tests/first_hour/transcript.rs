//! A transcript: input and output, as a person reads them and as they are run again.
//!
//! ```text
//! ## A part: the state of things
//!
//! ### What somebody does wrong: the object that the message must name
//! (a remark to the reader)
//! ! a line of shell that prepares it, and must succeed
//! & a line of shell that runs beside it: what it says first when it is ready
//! $ the command
//! > a question at the terminal: what is typed there; ^C is Control-C
//! what the command says
//! [exit 1]
//! ```
//!
//! In a command's output, `<id>` stands for an id, `<pid>` for a process id, `<size>` for a size,
//! `<time>` for a time, and `<any>` for words that differ between machines.

use std::fmt::Write;
use std::path::PathBuf;

use super::rules;
use super::user::User;

/// Set this variable to rewrite the transcripts.
const WRITE_VARIABLE: &str = "STRONGROOM_TRANSCRIBE";

pub struct Transcript {
    path: PathBuf,
    written: String,
    introduction: String,
    pub parts: Vec<Part>,
}

pub struct Part {
    pub title: String,
    pub scenes: Vec<Scene>,
}

/// One mistake.
#[derive(Default)]
pub struct Scene {
    title: String,
    remarks: Vec<String>,
    preparations: Vec<String>,
    beside: Vec<String>,
    command: String,
    answers: Vec<String>,
    told: Vec<String>,
    exit: String,
}

impl Transcript {
    pub fn read(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("first_hour").join(name);
        let written = std::fs::read_to_string(&path).unwrap();
        let mut introduction = String::new();
        let mut parts: Vec<Part> = Vec::new();
        for line in written.lines() {
            if let Some(title) = line.strip_prefix("## ") {
                parts.push(Part { title: title.to_owned(), scenes: Vec::new() });
                continue;
            }
            let Some(part) = parts.last_mut() else {
                introduction.push_str(line);
                introduction.push('\n');
                continue;
            };
            if let Some(title) = line.strip_prefix("### ") {
                part.scenes.push(Scene { title: title.to_owned(), ..Scene::default() });
            } else if let Some(scene) = part.scenes.last_mut() {
                scene.takes(line);
            }
        }
        Self { path, written, introduction, parts }
    }

    pub fn scenes(&self) -> impl Iterator<Item = &Scene> {
        self.parts.iter().flat_map(|part| &part.scenes)
    }

    /// Fails the test if anything differs from the transcript; or rewrites the transcript, on
    /// request.
    #[track_caller]
    pub fn compare_or_write(&self) {
        let mut now = self.introduction.clone();
        for part in &self.parts {
            write!(now, "## {}\n\n", part.title).unwrap();
            part.scenes.iter().for_each(|scene| scene.show(&mut now));
        }
        let now = format!("{}\n", now.trim_end());
        if now == self.written {
            return;
        }
        if std::env::var_os(WRITE_VARIABLE).is_some() {
            return std::fs::write(&self.path, now).unwrap();
        }
        let differs = |(old, new): &(&str, &str)| old != new;
        let (old, new) = self.written.lines().zip(now.lines()).find(differs).unwrap_or_default();
        panic!(
            "{} says\n  {old}\nand now it is\n  {new}\nIf that is meant, set {WRITE_VARIABLE}=1, run this test again and read the difference.",
            self.path.display()
        );
    }
}

impl Scene {
    fn takes(&mut self, line: &str) {
        let mut parts = line.splitn(2, ' ');
        match (parts.next(), parts.next()) {
            _ if self.command.is_empty() && line.starts_with('(') => self.remarks.push(line.to_owned()),
            (Some("!"), Some(rest)) if self.command.is_empty() => self.preparations.push(rest.to_owned()),
            (Some("&"), Some(rest)) if self.command.is_empty() => self.beside.push(rest.to_owned()),
            (Some("$"), Some(rest)) if self.command.is_empty() => self.command = rest.to_owned(),
            (Some(">"), Some(rest)) if self.told.is_empty() => self.answers.push(rest.to_owned()),
            _ if self.command.is_empty() || !self.exit.is_empty() => {
                assert!(line.is_empty(), "{}: what is this: {line}", self.title);
            }
            _ if line.starts_with("[exit ") => self.exit = line.to_owned(),
            _ => self.told.push(line.to_owned()),
        }
    }

    fn show(&self, text: &mut String) {
        writeln!(text, "### {}", self.title).unwrap();
        self.remarks.iter().for_each(|remark| writeln!(text, "{remark}").unwrap());
        self.preparations.iter().for_each(|line| writeln!(text, "! {line}").unwrap());
        self.beside.iter().for_each(|line| writeln!(text, "& {line}").unwrap());
        writeln!(text, "$ {}", self.command).unwrap();
        self.answers.iter().for_each(|line| writeln!(text, "> {line}").unwrap());
        self.told.iter().for_each(|line| writeln!(text, "{line}").unwrap());
        writeln!(text, "{}\n", self.exit).unwrap();
    }

    /// Runs it again, and records the output. Returns the errors that do not depend on the
    /// transcript: broken rules of refusals, and remains of the mistake.
    pub fn play(&mut self, user: &mut User<'_>) -> Vec<String> {
        let title = self.title.clone();
        let (_, object) = title.rsplit_once(": ").unwrap_or_else(|| panic!("'{title}' names no object"));
        for line in &self.preparations {
            let done = user.runs(line);
            assert!(done.status.success(), "{title}: {line}: {}{}", done.stdout, done.stderr);
        }
        let beside: Vec<_> = self
            .beside
            .iter()
            .map(|line| {
                let (line, ready) =
                    line.rsplit_once(": ").unwrap_or_else(|| panic!("{title}: when is '{line}' ready?"));
                user.starts(line, ready)
            })
            .collect();
        let before = user.belongings();
        let (exit, told) = self.run(user);
        let after = user.belongings();
        drop(beside);
        let told = user.shown(&told);
        let mut wrong = rules::broken_by(object, &told, user);
        if !matches!(exit, Some(1 | 2)) {
            wrong.push(format!("it should have been refused, and ended with {exit:?}"));
        }
        wrong.extend(after.beside(&before));
        let wrong = wrong.into_iter().map(|what| format!("{title}: {what}:\n{told}")).collect();
        let told: Vec<String> = told.trim_end().lines().map(neutral).collect();
        let as_written = told.len() == self.told.len()
            && told.iter().zip(&self.told).all(|(told, written)| fits(told, written));
        if !as_written {
            self.told = told;
        }
        self.exit = format!("[exit {}]", exit.map_or("by a signal".to_owned(), |exit| exit.to_string()));
        wrong
    }

    /// The exit status, and the command's output.
    fn run(&self, user: &mut User<'_>) -> (Option<i32>, String) {
        if self.answers.is_empty() {
            let done = user.runs(&self.command);
            return (done.status.code(), format!("{}{}", done.stdout, done.stderr));
        }
        let mut terminal = user.runs_at_terminal(&self.command);
        for answer in &self.answers {
            let end = answer.rfind("[y/N] ").map(|at| at + "[y/N] ".len());
            let end = end.or_else(|| answer.rfind(": ").map(|at| at + 2));
            let (question, keys) =
                answer.split_at(end.unwrap_or_else(|| panic!("what is asked in '{answer}'?")));
            terminal.shows(&user.meant(question));
            match keys {
                "^C" => terminal.types("\u{3}"),
                keys => terminal.types(&format!("{keys}\r")),
            }
        }
        let (status, shown) = terminal.ends();
        // The input at the last question comes before the command's output.
        let shown = shown.split_once('\n').map_or("", |(_, rest)| rest);
        (status.code(), shown.to_owned())
    }
}

/// A line with placeholders for ids and process ids.
fn neutral(line: &str) -> String {
    let words = line.split_inclusive(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '-'));
    let mut after_process = false;
    let mut neutral = String::new();
    for word in words {
        let text = word.trim_end_matches(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '-'));
        let rest = &word[text.len()..];
        let hexadecimal = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_id = text.split('-').map(str::len).eq([8, 4, 4, 4, 12]) && text.split('-').all(hexadecimal);
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        neutral.push_str(match () {
            () if is_id => "<id>",
            () if is_number && after_process => "<pid>",
            () => text,
        });
        neutral.push_str(rest);
        after_process = ["process", "kill"].contains(&text);
    }
    neutral
}

/// Whether a line matches the transcript, in which `<size>`, `<time>` and `<any>` match anything.
fn fits(line: &str, written: &str) -> bool {
    let mut parts = written
        .split("<any>")
        .flat_map(|part| part.split("<size>"))
        .flat_map(|part| part.split("<time>"))
        .peekable();
    let Some(first) = parts.next() else { return line.is_empty() };
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    while let Some(part) = parts.next() {
        let at = if parts.peek().is_none() {
            rest.ends_with(part).then(|| rest.len() - part.len())
        } else {
            rest.find(part)
        };
        match at {
            Some(at) if at > 0 => rest = &rest[at + part.len()..],
            _ => return false,
        }
    }
    rest.is_empty()
}

#[test]
fn lines_fit_or_do_not() {
    assert!(fits("a host with 24G of memory", "a host with <size> of memory"));
    assert!(!fits("a host with 24G of disk", "a host with <size> of memory"));
    assert!(!fits("", "a"));
    let line = "VM 019ab0f6-0d52-7c55-8e0a-6e5b3f0a3c11 is process 12345; 3 CPUs";
    assert_eq!(neutral(line), "VM <id> is process <pid>; 3 CPUs");
}
