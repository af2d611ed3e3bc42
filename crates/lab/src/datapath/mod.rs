//! The data path: this project's worker beside other servers of disks, in the same run.

pub mod guest_load;
