/// A count of things for a sentence: `1 VM`, `2 VMs`, `no VMs`. The plural takes an `s`; in a
/// `noun` of several words the first one is counted.
pub fn counted(count: usize, noun: &str) -> String {
    let (first, rest) =
        noun.split_once(' ').map_or((noun, String::new()), |(first, rest)| (first, format!(" {rest}")));
    match count {
        0 => format!("no {first}s{rest}"),
        1 => format!("1 {first}{rest}"),
        many => format!("{many} {first}s{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_more_than_one() {
        assert_eq!(counted(0, "VM"), "no VMs");
        assert_eq!(counted(1, "VM"), "1 VM");
        assert_eq!(counted(2, "volume beside VMs"), "2 volumes beside VMs");
    }
}
