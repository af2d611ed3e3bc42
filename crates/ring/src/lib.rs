//! The io_uring leaf and event loop.
