//! First writes: the speed of a disk that was never written, compared with one that was.
//!
//! A disk that allocates space on demand does more work for a block's first write than for its
//! second. The study measures how much more, for Strongroom's volumes and QEMU's images, all
//! through vhost-user-blk with the same front end, and on several file systems. Its results are the
//! ratios within a round: single figures depend more on the machine.
//!
//! - [`study`]: the order of the work; [`steps`]: the steps; [`result`]: the results; [`report`]:
//!   the tables.
//! - [`product`]: programs that make and serve disks; [`service`](crate::service): a running
//!   server; [`session`]: a server and its guest.
//! - [`writer`]: the guest; [`order`]: its order of writes; [`latency`](crate::latency),
//!   [`figures`]: its times.
//! - [`processes`](crate::processes): the server's processor time and memory.

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
