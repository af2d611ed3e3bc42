//! Studies: several ways to do the same thing, measured in the same run, so that what is compared met the same machine.
//!
//! A [`Subject`] is one of the ways, a [`Workload`] is the thing. What is measured is a [`Sample`]. This room knows
//! nothing of disks: what subjects there are, and how they are driven, is the matter of each study.
//!
//! **May not enter:** anything that knows what a subject is made of.

mod sample;
mod subject;

pub use sample::{Metric, Sample};
pub use subject::{Session, Subject, SubjectError, Workload};
