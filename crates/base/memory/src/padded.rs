//! Values that share no cache line with others.

use std::ops::Deref;

/// A value on cache lines of its own: for an atomic that several threads write often, beside which
/// lies what they only read, or what others write. Each write takes the whole line away from every
/// other processor, and on machines of several NUMA nodes it comes back from another node.
///
/// 128 bytes: lines of x86-64 and most of arm64 have 64, but x86-64 fetches them in pairs, and some
/// of arm64 have 128.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Padded<T>(T);

impl<T> Padded<T> {
    /// With this value.
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
