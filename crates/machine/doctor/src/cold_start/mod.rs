//! The cold-start cycle: a VM that waits for a key that is only to be had once that VM runs.
//!
//! While everything runs nobody notices. After a whole site has lost its power nothing starts, and
//! the keys are on the other side of the circle. So it is looked for beforehand: what needs what is
//! a graph, and each of its circles is reported step by step.

mod facts;
mod served;

use std::collections::BTreeSet;
use std::fmt;

use strongroom_hostd::checks::Finding;

pub use self::facts::{Site, gather, resolve, vms_of};

/// The most circles that are told: who has more mends one and looks again.
const CYCLES_MAX: usize = 8;

const CHECK: &str = "cold-start";

/// Something that has to be there before something else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// A VM of this installation, by its name.
    Vm(String),
    /// A volume that is exposed, by its path.
    Volume(String),
    /// A key provider.
    Provider(String),
    /// The home: the key server's store, seals, settings, the inventory.
    Home(String),
}

/// What one part needs of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// Who.
    pub of: Part,
    /// What.
    pub on: Part,
    /// How that is known.
    pub because: String,
    /// How it would not be so.
    pub instead: String,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vm(name) => write!(f, "VM {name}"),
            Self::Volume(path) => write!(f, "volume {path}"),
            Self::Provider(name) => write!(f, "key provider {name}"),
            Self::Home(path) => write!(f, "the home {path}"),
        }
    }
}

/// What was found, as findings: one for each circle, or one that says that there is none.
pub fn findings(needs: &[Need], unknown: &[String]) -> Vec<Finding> {
    let why = "after a loss of power none of these can be the first to start";
    let mut findings: Vec<_> = cycles(needs)
        .into_iter()
        .map(|cycle| {
            let steps: Vec<_> = cycle
                .iter()
                .enumerate()
                .map(|(number, need)| {
                    format!("({}) {} needs {}: {}", number + 1, need.of, need.on, need.because)
                })
                .collect();
            let ways: BTreeSet<_> = cycle.iter().map(|need| need.instead.as_str()).collect();
            let ways: Vec<_> = ways.into_iter().collect();
            Finding::refused(
                CHECK,
                format!("a circle: {}", steps.join("; ")),
                why,
                format!("break it once: {}", ways.join("; or ")),
            )
        })
        .collect();
    findings.extend(unknown.iter().map(|what| {
        Finding::warning(
            CHECK,
            what.clone(),
            why,
            "see to it by hand; where a VM serves a key provider, say so: `provides-keys = VM=PROVIDER` in the configuration file",
        )
    }));
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, "no key waits for a VM that waits for it"));
    }
    findings
}

/// The circles of a graph, each once, beginning with its least part.
fn cycles(needs: &[Need]) -> Vec<Vec<&Need>> {
    let mut found: Vec<Vec<&Need>> = Vec::new();
    let starts: BTreeSet<&Part> = needs.iter().map(|need| &need.of).collect();
    for start in starts {
        walk(needs, start, &mut Vec::new(), &mut found);
    }
    found
}

/// Follows needs from the last one on. Only parts above the first are gone to, so that each circle
/// is found from its least part alone.
fn walk<'needs>(
    needs: &'needs [Need],
    start: &Part,
    way: &mut Vec<&'needs Need>,
    found: &mut Vec<Vec<&'needs Need>>,
) {
    let at = way.last().map_or(start, |need| &need.on);
    for need in needs.iter().filter(|need| need.of == *at) {
        if found.len() >= CYCLES_MAX {
            return;
        }
        way.push(need);
        if need.on == *start {
            found.push(way.clone());
        } else if need.on > *start && way.iter().all(|before| before.of != need.on) {
            walk(needs, start, way, found);
        }
        way.pop();
    }
}

#[cfg(test)]
mod tests {
    use strongroom_hostd::checks::Verdict;

    use super::*;

    fn need(of: Part, on: Part) -> Need {
        Need { of, on, because: "it is so".to_owned(), instead: "make it otherwise".to_owned() }
    }

    fn vm(name: &str) -> Part {
        Part::Vm(name.to_owned())
    }

    fn provider(name: &str) -> Part {
        Part::Provider(name.to_owned())
    }

    fn home() -> Part {
        Part::Home("/var/lib/strongroom".to_owned())
    }

    #[test]
    fn a_vault_in_a_vm_under_its_own_key_is_found_and_each_step_is_named() {
        let needs = [
            need(vm("web1"), provider("corp")),
            need(vm("vault1"), provider("corp")),
            need(provider("corp"), vm("vault1")),
        ];
        let findings = findings(&needs, &[]);
        let [found] = &findings[..] else { panic!("{findings:?}") };
        assert_eq!(found.verdict, Verdict::Refused);
        assert!(found.found.contains("(1) VM vault1 needs key provider corp: it is so"), "{found:?}");
        assert!(found.found.contains("(2) key provider corp needs VM vault1"), "{found:?}");
        assert!(!found.found.contains("web1"), "{found:?}");
    }

    #[test]
    fn a_vault_under_the_key_servers_own_key_is_no_circle() {
        let needs = [
            need(vm("vault1"), provider("embedded")),
            need(provider("embedded"), home()),
            need(vm("web1"), provider("corp")),
            need(provider("corp"), vm("vault1")),
        ];
        assert!(cycles(&needs).is_empty());
        assert_eq!(findings(&needs, &[])[0].verdict, Verdict::Ok);
    }

    #[test]
    fn long_circles_are_found_once_and_many_are_bounded() {
        let needs = [
            need(vm("a"), provider("p")),
            need(provider("p"), vm("b")),
            need(vm("b"), provider("q")),
            need(provider("q"), home()),
            need(home(), vm("a")),
        ];
        let found = cycles(&needs);
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [5]);
        // Everything needs everything: told some, and in time.
        let parts: Vec<_> = (0..12).map(|number| vm(&number.to_string())).collect();
        let all: Vec<_> = parts
            .iter()
            .flat_map(|of| {
                parts.iter().filter(move |on| *on != of).map(move |on| need(of.clone(), on.clone()))
            })
            .collect();
        assert_eq!(cycles(&all).len(), CYCLES_MAX);
    }
}
