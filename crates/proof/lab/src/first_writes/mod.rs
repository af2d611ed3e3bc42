//! First writes: how fast a disk is that has never been written, beside one that has.
//!
//! A disk that takes its space when it is written does more for a block's first write than for its
//! second. The study measures how much more, of Strongroom's volumes and of QEMU's images, all
//! through vhost-user-blk by the same front end, and on file systems side by side. Ratios within a
//! round are what it is for: single figures say more of the machine.
//!
//! - [`study`] says what is done in which order; [`steps`] how; [`result`] what comes out;
//!   [`report`] prints it.
//! - [`product`]: what makes disks and serves them; [`service`](crate::service): such a server,
//!   running; [`session`]: it and its guest.
//! - [`writer`]: the guest; [`order`]: where it writes; [`latency`](crate::latency), [`figures`]:
//!   what it took.
//! - [`processes`](crate::processes): what the server took of processor and memory.

pub mod error;
pub mod figures;
pub mod order;
pub mod product;
pub mod report;
pub mod result;
pub mod session;
pub mod steps;
pub mod study;
pub mod writer;
