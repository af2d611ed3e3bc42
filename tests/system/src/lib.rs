//! Harness of the whole-system tests: processes that end with their test, QEMU guests, real peers.
