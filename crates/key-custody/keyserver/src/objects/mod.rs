//! Managed objects: what they are, how they live, how they are kept.
//!
//! | file | what |
//! |---|---|
//! | [`lifecycle`] | states and dates |
//! | [`attributes`] | what clients set, and who may change which |
//! | [`object`] | one object, and its metadata as bytes |
//! | [`view`] | all attributes of an object as KMIP has them |
//! | [`sealing`] | the sealed record |
//! | `sketches` | what metadata say, remembered |
//! | [`keeping`] | the store: indexes, pieces of work, transactions |
//! | [`transfer`] | objects out of a store and into another, for backups |
//! | [`dependents`] | what needs a key |
//! | [`destruction`] | destroying after a delay, with a second person, and never what is needed |
//!
//! A destroyed object leaves a tombstone for good: whoever asks for it, or restores a backup that
//! still had it, learns that it is dead. What may not enter: who may do what (`access`), messages
//! (`operations`).

pub mod attributes;
pub mod clock;
mod content;
pub mod dependents;
pub mod destruction;
pub mod id;
pub mod keeping;
pub mod lifecycle;
pub mod object;
pub mod sealing;
mod sketches;
pub mod transfer;
pub mod view;
