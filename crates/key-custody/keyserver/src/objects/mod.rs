//! Managed objects: their contents, life cycle and storage.
//!
//! | file | what |
//! |---|---|
//! | [`lifecycle`] | states and dates |
//! | [`attributes`] | attributes set by clients, and the rules for changing them |
//! | [`object`] | one object, and its metadata as bytes |
//! | [`view`] | all attributes of an object in KMIP's form |
//! | [`sealing`] | the sealed record |
//! | `sketches` | a cache of decoded metadata |
//! | [`keeping`] | the store: indexes, pieces of work, transactions |
//! | [`transfer`] | moves objects between stores, for backups |
//! | [`dependents`] | what depends on a key |
//! | [`destruction`] | destruction after a delay, with a second person, and without dependents |
//!
//! A destroyed object leaves a permanent tombstone: a request for it, or a restore of a backup that
//! still has it, finds that it is destroyed. What may not enter: permissions (`access`), messages
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
