//! Values that share no cache line with others.

use std::ops::Deref;

/// A value on its own cache lines, for an atomic that several threads write often. Each write
/// invalidates the whole line for every other processor, including neighbouring values that others
/// only read or that other threads write; on machines with several NUMA nodes the line then comes
/// from another node.
///
/// The alignment is 128 bytes: x86-64 and most arm64 processors have lines of 64, but x86-64
/// fetches them in pairs, and some arm64 processors have lines of 128.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Padded<T>(T);

impl<T> Padded<T> {
    /// Pads this value.
    pub const fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn padded_values_lie_128_bytes_apart() {
        let pair = [Padded::new(AtomicBool::new(false)), Padded::new(AtomicBool::new(true))];
        let places = pair.each_ref().map(|one| std::ptr::from_ref(&**one) as usize);
        assert_eq!((places[0] % 128, places[1] - places[0]), (0, 128));
    }
}
