//! The table of requests that a stage has sent down and waits for.

/// The place of an entry; its number is the tag that is sent down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(u32);

impl Slot {
    /// The tag to send down.
    pub fn tag(self) -> u64 {
        u64::from(self.0)
    }

    /// The slot of a tag that came back.
    pub fn from_tag(tag: u64) -> Option<Self> {
        u32::try_from(tag).ok().map(Self)
    }
}

/// A stage's state of each request that it sent down, found by tag without searching. It grows to
/// the most requests that were in flight at once, and then allocates no more.
#[derive(Debug)]
pub struct InFlight<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> InFlight<T> {
    /// A table with room for `depth` entries at once; it grows if there are more.
    pub fn with_depth(depth: usize) -> Self {
        Self { entries: Vec::with_capacity(depth), free: Vec::with_capacity(depth) }
    }

    /// Stores `entry` until it is taken.
    pub fn insert(&mut self, entry: T) -> Slot {
        if let Some(index) = self.free.pop() {
            self.entries[index as usize] = Some(entry);
            return Slot(index);
        }
        self.entries.push(Some(entry));
        Slot((self.entries.len() - 1) as u32)
    }

    /// Takes the entry of a slot; `None` if there is none.
    pub fn take(&mut self, slot: Slot) -> Option<T> {
        let entry = self.entries.get_mut(slot.0 as usize)?.take()?;
        self.free.push(slot.0);
        Some(entry)
    }

    /// The entry of a slot.
    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.entries.get_mut(slot.0 as usize)?.as_mut()
    }

    /// All entries.
    pub fn into_entries(self) -> impl Iterator<Item = T> {
        self.entries.into_iter().flatten()
    }

    /// Count of entries.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_taken_once_and_slots_used_again() {
        let mut table = InFlight::with_depth(2);
        let (a, b, c) = (table.insert('a'), table.insert('b'), table.insert('c'));
        assert_eq!((table.take(b), table.take(b), table.len()), (Some('b'), None, 2));
        let d = table.insert('d');
        assert_eq!((d, table.take(a), table.take(c), table.take(d)), (b, Some('a'), Some('c'), Some('d')));
        assert!(table.is_empty());
        assert_eq!(table.take(Slot::from_tag(99).unwrap()), None);
        assert_eq!(Slot::from_tag(u64::MAX), None);
    }
}
