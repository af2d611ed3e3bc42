//! The strongroom program.
fn main() {}
