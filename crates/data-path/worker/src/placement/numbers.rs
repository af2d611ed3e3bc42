//! Sets of processors or nodes, as the kernel writes them.

use std::collections::BTreeSet;
use std::fmt;

/// The highest number that is accepted; the kernel can be built for 8192 processors and 1024 nodes.
const NUMBER_MAX: u32 = 1 << 16;

/// Numbers of processors or of nodes: `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers(BTreeSet<u32>);

impl Numbers {
    /// Parses a list; `None` if it is invalid. An empty list is valid.
    pub fn parse(list: &str) -> Option<Self> {
        let mut numbers = BTreeSet::new();
        for part in list.trim().split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
            if first > last || last > NUMBER_MAX {
                return None;
            }
            numbers.extend(first..=last);
        }
        Some(Self(numbers))
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The count of numbers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set contains a number.
    pub fn contains(&self, number: u32) -> bool {
        self.0.contains(&number)
    }

    /// The numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    /// The intersection of two sets.
    pub fn and(&self, other: &Self) -> Self {
        self.iter().filter(|number| other.contains(*number)).collect()
    }
}

impl FromIterator<u32> for Numbers {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        Self(numbers.into_iter().collect())
    }
}

impl Extend<u32> for Numbers {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, numbers: I) {
        self.0.extend(numbers);
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut numbers = self.iter().peekable();
        while let Some(first) = numbers.next() {
            let mut last = first;
            while let Some(next) = numbers.next_if(|next| *next == last + 1) {
                last = next;
            }
            match first == last {
                true => write!(f, "{separator}{first}")?,
                false => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for list in ["", "0", "0-1", "0-5,48-53", "3,5-7,9"] {
            assert_eq!(Numbers::parse(&format!("{list}\n")).unwrap().to_string(), list);
        }
        assert_eq!(Numbers::parse("0-3,8").unwrap().len(), 5);
        for wrong in ["a", "3-1", "-", "1-", "0-4294967295", "1;2"] {
            assert_eq!(Numbers::parse(wrong), None, "{wrong}");
        }
    }
}
