//! Which operation is possible on which VM: the whole matrix, each cell of which is what the
//! program answered when it was done. This test writes `docs/OPERATIONS.md`.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use strongroom_system_tests::{Scratch, Serving};
use strongroom_test_peers::CephCluster;

/// Set this variable to rewrite the page.
const WRITE_VARIABLE: &str = "STRONGROOM_TRANSCRIBE";
const PAGE: &str = "docs/OPERATIONS.md";
/// The widest line of a document.
const COLUMNS: usize = 100;

const INTRODUCTION: &str = "\
# Operations

What can be done with which VM. `tests/system/tests/operations.rs::the_page_of_operations_is_what_the_program_answers`
writes this page: each cell is what the program answered when the command was run on a VM with two
disks in that state, `ok` or the code of the refusal, with its message below. Set
`STRONGROOM_TRANSCRIBE=1` to write it anew.

The columns: the VM is off or runs, and has no snapshot or has the snapshot `first`. The commands
are run in this order; what one has changed is undone before the next.

VMs on a Ceph cluster (`CEPH.md`) get the answers of the first table, which
`tests/system/tests/operations.rs::the_page_of_operations_holds_on_a_cluster` compares (`make test-ceph`).
";

/// VMs by how their disks are stored: the title, and the options of `vm create`.
const KINDS: [(&str, &str); 3] = [
    ("Encrypted", ""),
    ("Encrypted, with a tag for each block (`--integrity`)", "--integrity"),
    ("Not encrypted (`--unencrypted`)", "--unencrypted"),
];

/// A command, and what undoes it if it has succeeded.
struct Deed {
    command: &'static str,
    undo: &'static [&'static str],
}

const fn deed(command: &'static str, undo: &'static [&'static str]) -> Deed {
    Deed { command, undo }
}

/// The commands, as they are written in the page: the VM is `web1`. The order matters: clones are
/// made before layers are merged, and a VM is suspended before disks are plugged in and out.
const DEEDS: &[Deed] = &[
    deed("vm clone web1 web2", &["vm delete web2 --yes"]),
    deed("vm clone web1 web2 --snapshot first", &["vm delete web2 --yes"]),
    deed(
        "vm clone web1 web2 --linked",
        &["vm delete web2 --yes", "vm snapshot delete web1 clone-web2 --yes"],
    ),
    deed("vm clone web1 web2 --linked --snapshot first", &["vm delete web2 --yes"]),
    deed("vm export web1 web1.raw --disk disk0 --format raw", &[]),
    deed("vm check web1 --data", &[]),
    deed("vm set web1 --cpus 2", &[]),
    deed("vm nic add web1 --net user", &["vm nic remove web1 nic0"]),
    deed("vm set web1 --name web3", &["vm set web3 --name web1"]),
    deed("vm set web1 --tag env=prod", &["vm set web1 --untag env"]),
    deed("vm pause web1", &["vm resume web1"]),
    deed("vm suspend web1", &["vm start web1"]),
    deed("vm dump create web1", &["vm dump delete web1 1 --yes"]),
    deed("vm key rotate web1", &[]),
    deed("vm key rotate web1 --data", &[]),
    deed("vm disk decrypt web1 disk1", &["vm disk encrypt web1 disk1"]),
    deed("vm disk encrypt web1 disk1", &["vm disk decrypt web1 disk1"]),
    deed("vm snapshot schedule web1 --every 1d --keep 7", &["vm snapshot schedule web1 --none"]),
    deed("vm snapshot revert web1 first --discard --yes", &[]),
    deed("vm snapshot create web1 second", &["vm snapshot delete web1 second --yes"]),
    deed(
        "vm snapshot create web1 quiet --quiesce --quiesce-within 1s",
        &["vm snapshot delete web1 quiet --yes"],
    ),
    deed(
        "vm snapshot create web1 both --with data1",
        &["vm snapshot delete web1 both --yes", "disk snapshot delete data1 both --yes"],
    ),
    deed("vm snapshot create web1 third --memory", &["vm snapshot delete web1 third --yes"]),
    deed("vm snapshot delete web1 first --yes", &["vm snapshot create web1 first"]),
    deed("vm disk add web1 --size 16M", &["vm disk remove web1 disk2 --yes"]),
    deed("vm disk resize web1 disk1 --size 48M", &[]),
    deed("vm disk limit web1 disk1 --iops 2000", &["vm disk limit web1 disk1 --none"]),
    deed("vm limit web1 --iops 2000", &["vm limit web1 --none"]),
    deed("vm disk import web1 disk1 image.raw --format raw", &[]),
    deed("disk bind data1 web1", &["disk unbind web1/disk2"]),
    deed("disk unbind web1/disk1 --name data2", &["disk bind data2 web1"]),
    deed("disk clone web1/disk1 data3", &["disk delete data3 --yes"]),
    deed(
        "disk clone web1/disk1 data3 --linked",
        &["disk delete data3 --yes", "vm snapshot delete web1 clone-data3 --yes"],
    ),
    deed("vm disk remove web1 disk1 --yes", &["vm disk add web1 --size 48M"]),
    deed("vm delete web1 --yes", &[]),
];

/// The answers, with the messages of refusals, each once.
#[derive(Default)]
struct Answers {
    messages: Vec<String>,
}

impl Answers {
    /// Runs a command, and returns the text of its cell.
    fn to(&mut self, serving: &Serving<'_>, deed: &Deed) -> String {
        let told = match serving.answer(deed.command) {
            Ok(_) => {
                for undo in deed.undo {
                    serving.runs(undo);
                }
                return "ok".to_owned();
            }
            Err(told) => told,
        };
        let code = told["code"].as_str().unwrap();
        let here = std::env::temp_dir().display().to_string();
        assert!(!told.to_string().contains(&here), "it differs each time: {}: {told}", deed.command);
        let message = format!("`{code}`: {}", told["message"].as_str().unwrap().replace('\n', " "));
        let known = self.messages.iter().position(|known| *known == message);
        let number = known.unwrap_or_else(|| {
            self.messages.push(message);
            self.messages.len() - 1
        });
        format!("`{code}` ({})", number + 1)
    }
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn the_page_of_operations_is_what_the_program_answers() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    let _place = serving.take_place();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    let mut page = INTRODUCTION.to_owned();
    let mut answers = Answers::default();
    for (title, options) in KINDS {
        page.push_str(&table(title, &columns(&scratch, &serving, &mut answers, options, &guest)));
    }
    page.push_str("\n## Refusals\n\n");
    for (number, message) in answers.messages.iter().enumerate() {
        page.push_str(&wrapped(&format!("{}. {message}", number + 1)));
    }
    is_written(&page);
}

/// What the program answers about VMs with these options, a column for each state.
fn columns(
    scratch: &Scratch,
    serving: &Serving<'_>,
    answers: &mut Answers,
    options: &str,
    guest: &str,
) -> Vec<Vec<String>> {
    std::fs::File::create(scratch.path("image.raw")).unwrap().set_len(8 << 20).unwrap();
    let mut columns = Vec::new();
    for (runs, with_snapshot) in [(false, false), (false, true), (true, false), (true, true)] {
        let disks = "--disk 64M --disk 32M";
        serving.runs(&format!("vm create web1 --memory 256M --net none {disks} {options} {guest}"));
        serving.runs(&format!("disk create data1 --size 16M {options}"));
        if with_snapshot {
            serving.runs("vm snapshot create web1 first");
        }
        if runs {
            serving.runs("vm start web1");
            serving.console("web1").wait_until_ready();
        }
        columns.push(DEEDS.iter().map(|deed| answers.to(serving, deed)).collect::<Vec<_>>());
        let _ = std::fs::remove_file(scratch.path("web1.raw"));
        serving.runs("disk delete data1 --yes");
        if runs {
            serving.runs("vm stop web1 --force");
            serving.runs("vm delete web1 --yes");
        }
    }
    columns
}

/// A VM on a cluster gets the answers of the page's first table.
#[test]
#[ignore = "long: make test-ceph"]
fn the_page_of_operations_holds_on_a_cluster() {
    let mut cluster = CephCluster::start(3);
    cluster.add_user("client.host1");
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    let _place = serving.take_place();
    let (conf, keyring) = (cluster.conf.display(), cluster.conf.with_file_name("keyring"));
    let pools = "--rbd rep2 --data-pool ec21 --user client.host1";
    serving.runs(&format!("datastore add big {pools} --conf {conf} --keyring {}", keyring.display()));
    let mut answers = Answers::default();
    let (title, options) = KINDS[0];
    let columns = columns(&scratch, &serving, &mut answers, options, &guest);
    let page = std::fs::read_to_string(page()).unwrap();
    let found = table(title, &columns);
    let mut known = page.split("\n## ").filter_map(|part| part.strip_prefix(title)?.split_once("\n\n"));
    let (_, known) = known.next().unwrap();
    let differing =
        found.lines().filter(|line| line.starts_with('|') && !known.lines().any(|has| has == *line));
    assert_eq!(differing.collect::<Vec<_>>(), [""; 0], "{:#?}", answers.messages);
    for (number, message) in answers.messages.iter().enumerate() {
        let point = wrapped(&format!("{}. {message}", number + 1));
        assert!(page.contains(&point), "{PAGE} has no such refusal: {point}");
    }
}

/// One table: a row for each command, and a column for each state.
fn table(title: &str, columns: &[Vec<String>]) -> String {
    let mut text = format!("\n## {title}\n\n");
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "| `strongroom ...` | off | off, snapshot | runs | runs, snapshot |\n|---|---|---|---|---|"
    );
    for (row, deed) in DEEDS.iter().enumerate() {
        let cells: Vec<&str> = columns.iter().map(|column| column[row].as_str()).collect();
        let _ = writeln!(text, "| `{}` | {} |", deed.command, cells.join(" | "));
    }
    text
}

/// A point of a list, in lines of at most [`COLUMNS`].
fn wrapped(point: &str) -> String {
    let (mut text, mut column) = (String::new(), 0);
    for word in point.split_whitespace() {
        let width = word.chars().count();
        let gap = match column {
            0 => "",
            column if column + 1 + width <= COLUMNS => " ",
            _ => "\n   ",
        };
        column = if gap.len() > 1 { gap.len() - 1 + width } else { column + gap.len() + width };
        text.push_str(gap);
        text.push_str(word);
    }
    text + "\n"
}

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE)
}

/// Checks that the page is this text, or writes it.
fn is_written(page: &str) {
    let path = self::page();
    if std::env::var_os(WRITE_VARIABLE).is_some() {
        return std::fs::write(path, page).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    let differs = |(old, new): &(&str, &str)| old != new;
    let different = written.lines().zip(page.lines()).find(differs);
    assert!(
        written == page,
        "{PAGE} says and the program answers {different:#?}\nIf that is meant, set {WRITE_VARIABLE}=1, run this test again \
         and read the difference."
    );
}
