//! The first hour of a new user: the README's commands as they are written, the examples in every
//! command's help, and common mistakes with their messages.
//!
//! - `first_hour/mistakes.txt` has the mistakes as a terminal showed them; [`transcript`] runs them
//!   again and compares.
//! - [`readme`], [`help`]: commands as they are written, with the outcome of each ([`steps`]).
//! - [`rules`]: the rules for every refusal, whatever the transcript says.
//! - [`user`]: the user: a home, a working directory, a `serve`.
//!
//! After an intended change of a text, `STRONGROOM_TRANSCRIBE=1 cargo test --workspace --test
//! system -- first_hour` rewrites the transcript, for a person to read.

mod help;
mod readme;
mod rules;
mod steps;
mod transcript;
mod user;

use strongroom_system_tests::Scratch;
use transcript::Transcript;
use user::User;

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn mistakes_are_told_with_their_object_and_the_next_step() {
    let scratch = Scratch::new();
    let mut user = User::new(&scratch);
    let mut transcript = Transcript::read("mistakes.txt");
    let mut wrong = Vec::new();
    for part in &mut transcript.parts {
        match part.title.as_str() {
            "Before anything runs" => {}
            "While strongroom serve runs" => user.serves(),
            "After strongroom serve has ended" => user.ends(),
            other => panic!("nobody knows how to get to '{other}'"),
        }
        for mistake in &mut part.scenes {
            wrong.extend(mistake.play(&mut user));
        }
    }
    assert!(transcript.scenes().count() >= 20);
    transcript.compare_or_write();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
