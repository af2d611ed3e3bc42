//! The suite that every [`Disk`](crate::Disk) must pass.
