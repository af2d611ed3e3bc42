//! Attempts to leave the sandbox, one by one, as root's workers and an ordinary user's, as
//! supervisors and monitors; and the work that must still be possible inside.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod sandbox_support;

use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use rustix::io::Errno;
use sandbox_support::Walls::{Confined, Old, Sealed};
use sandbox_support::{End, Program, SECRET, Walls, World, duties, outside, probe, user_name, users};

/// A call that only an attacker makes.
const KILLED: End = End::Killed(libc::SIGSYS);
/// A call that the filter refuses.
const DENIED: End = End::Refused(Errno::PERM);
const NO_RIGHT: End = End::Refused(Errno::PERM);
const LANDLOCKED: End = End::Refused(Errno::ACCESS);
const NOT_THERE: End = End::Refused(Errno::NOENT);

/// Each deed, how it ends without the filter of system calls, and how it ends with it.
#[rustfmt::skip]
const DENIALS: &[(&str, Option<End>, End)] = &[
    // It reaches no file.
    ("open a file by its path", Some(NOT_THERE), DENIED),
    ("open a file in an open directory", Some(LANDLOCKED), DENIED),
    ("open a directory's parent", Some(LANDLOCKED), DENIED),
    ("list the root directory", Some(LANDLOCKED), DENIED),
    ("open the device of networks", Some(NOT_THERE), DENIED),
    ("open a file by its handle", Some(NO_RIGHT), KILLED),
    ("create a file in the root directory", Some(End::Refused(Errno::ROFS)), DENIED),
    ("create a file in an open directory", Some(LANDLOCKED), DENIED),
    ("write to a file in an open directory", Some(LANDLOCKED), DENIED),
    ("unlink a file", Some(LANDLOCKED), DENIED),
    ("climb out of the root directory", Some(NOT_THERE), DENIED),
    ("go to an open directory and look up", Some(LANDLOCKED), DENIED),
    // It reaches no network.
    ("make a socket", None, DENIED),
    ("connect to the host's loopback", Some(LANDLOCKED), DENIED),
    ("listen on TCP", Some(LANDLOCKED), DENIED),
    ("connect to an abstract socket", Some(End::Refused(Errno::CONNREFUSED)), DENIED),
    ("connect to a socket's path", Some(NOT_THERE), DENIED),
    // It starts nothing, and reaches no process.
    ("execute a program", Some(NOT_THERE), KILLED),
    ("start a process", Some(NOT_THERE), DENIED),
    ("fork", None, DENIED),
    ("clone, third version", None, DENIED),
    ("start a thread", None, DENIED),
    ("attach to a process", Some(NO_RIGHT), KILLED),
    ("read a process's memory", Some(NO_RIGHT), KILLED),
    ("open a process's memory by its path", Some(NOT_THERE), DENIED),
    ("open a process's memory in an open directory", Some(LANDLOCKED), DENIED),
    ("signal a process", Some(NO_RIGHT), DENIED),
    ("signal a process through its descriptor", Some(NO_RIGHT), DENIED),
    ("take a descriptor of a process", Some(NO_RIGHT), KILLED),
    // It gets no right back.
    ("become root", None, KILLED),
    ("join a group", Some(NO_RIGHT), KILLED),
    ("take capabilities", Some(NO_RIGHT), KILLED),
    ("make a namespace", Some(NO_RIGHT), KILLED),
    ("make a user namespace", None, KILLED),
    ("join the host's network", Some(NO_RIGHT), KILLED),
    ("mount", Some(NO_RIGHT), KILLED),
    ("become dumpable", None, DENIED),
    ("raise a limit", Some(NO_RIGHT), DENIED),
    ("allow core files", Some(NO_RIGHT), DENIED),
    // It runs only its own code, and reaches none of the kernel's large interfaces.
    ("map executable memory", None, DENIED),
    ("make memory executable", None, DENIED),
    ("make a ring", None, DENIED),
    ("register buffers with a ring", None, DENIED),
    ("handle page faults", None, KILLED),
    ("load a program into the kernel", None, KILLED),
    ("use the kernel's keys", None, KILLED),
    ("measure the processor", None, KILLED),
    ("load a module", None, KILLED),
    ("end the machine", Some(NO_RIGHT), KILLED),
    ("read the kernel's log", None, KILLED),
    ("control a terminal", None, DENIED),
];

/// A call that a supervisor's filter does not know.
const UNKNOWN: End = End::Refused(Errno::NOSYS);

/// The same for a supervisor that has given up its rights: each deed, and how it ends.
#[rustfmt::skip]
const SUPERVISORS: &[(&str, End)] = &[
    // It reaches its own files, and those that it gives its workers.
    ("write a file of its own", End::Done),
    ("make a page for workers to count in, and read it", End::Done),
    ("open a file by its path", LANDLOCKED),
    ("open a file in an open directory", LANDLOCKED),
    ("open a directory's parent", LANDLOCKED),
    ("list the root directory", LANDLOCKED),
    ("open the device of networks", LANDLOCKED),
    ("open a file by its handle", KILLED),
    ("create a file in the root directory", LANDLOCKED),
    ("create a file in an open directory", LANDLOCKED),
    ("write to a file in an open directory", LANDLOCKED),
    ("unlink a file", LANDLOCKED),
    ("give a file away", UNKNOWN),
    ("link to a file elsewhere", UNKNOWN),
    // It is a client of key servers.
    ("connect to the host's loopback", End::Done),
    ("listen on TCP", LANDLOCKED),
    ("connect to an abstract socket", NO_RIGHT),
    ("make a packet socket", UNKNOWN),
    // It starts threads, no process, and reaches none.
    ("start a thread", End::Done),
    ("execute a program", KILLED),
    ("start a process", UNKNOWN),
    ("fork", UNKNOWN),
    ("clone, third version", UNKNOWN),
    ("attach to a process", KILLED),
    ("read a process's memory", KILLED),
    ("open a process's memory by its path", LANDLOCKED),
    ("signal a process", UNKNOWN),
    ("signal a process through its descriptor", UNKNOWN),
    ("take a descriptor of a process", KILLED),
    // It gets no right back.
    ("become root", KILLED),
    ("join a group", KILLED),
    ("take capabilities", KILLED),
    ("make a namespace", KILLED),
    ("make a user namespace", KILLED),
    ("join the host's network", KILLED),
    ("mount", KILLED),
    ("become dumpable", UNKNOWN),
    ("raise a limit", UNKNOWN),
    ("allow core files", UNKNOWN),
    // It runs only its own code, and reaches few of the kernel's large interfaces.
    ("make memory executable", UNKNOWN),
    ("handle page faults", KILLED),
    ("load a program into the kernel", KILLED),
    ("use the kernel's keys", KILLED),
    ("measure the processor", KILLED),
    ("load a module", KILLED),
    ("end the machine", KILLED),
    ("read the kernel's log", KILLED),
    ("control a terminal", UNKNOWN),
];

/// Deeds that a monitor's filter refuses in addition to those that it refuses to a worker.
const MONITORS: &[&str] = &[
    "write a file of its own",
    "give a file away",
    "link to a file elsewhere",
    "make a packet socket",
    "read a process's environment by its path",
    "read a process's mappings by their path",
    "list a process's files by their path",
];

/// Deeds that any process can do outside the sandbox, which shows that the sandbox prevents them.
const ANYBODY: &[&str] = &[
    "open a file by its path",
    "open a file in an open directory",
    "open a directory's parent",
    "list the root directory",
    "create a file in an open directory",
    "write a file of its own",
    "link to a file elsewhere",
    "climb out of the root directory",
    "go to an open directory and look up",
    "make a socket",
    "connect to the host's loopback",
    "listen on TCP",
    "connect to an abstract socket",
    "connect to a socket's path",
    "name a peer for a socket that is there",
    "start a process",
    "fork",
    "start a thread",
    "map executable memory",
    "make memory executable",
    "become dumpable",
    "use the kernel's keys",
];

fn main() {
    // This must run on the first and only thread, on which a worker enters the sandbox.
    probe::run_if_asked();
    // Copy it before other threads start processes, which would hold it open for writing.
    let program = Arc::new(Program::copy());
    let mut trials = Vec::new();
    for user in users() {
        // Skip deeds that an older kernel cannot deny without the filter.
        let has = |walls| World::new(&program).try_deed(walls, Confined, user) == Ok(End::Done);
        let complete = has("have every wall");
        if !complete {
            eprintln!(
                "as {}: walls are missing here; only those that seccomp makes are tried",
                user_name(user)
            );
        }
        for (deed, confined, sealed) in DENIALS {
            for (walls, wanted) in [(Confined, confined.filter(|_| complete)), (Sealed, Some(*sealed))] {
                if let Some(wanted) = wanted {
                    trials.push(trial(&program, deed, walls, user, wanted));
                }
            }
        }
        if complete {
            // The filter cannot see the name, because it lies in memory. Landlock checks it.
            let deed = "name a peer for a socket that is there";
            trials.extend([Confined, Sealed].map(|walls| trial(&program, deed, walls, user, NO_RIGHT)));
        }
        for (deed, wanted) in SUPERVISORS {
            if complete || ![LANDLOCKED, NO_RIGHT].contains(wanted) {
                trials.push(trial(&program, deed, Walls::Supervisor, user, *wanted));
            }
        }
        let monitors = DENIALS.iter().map(|(deed, _, sealed)| (*deed, *sealed));
        for (deed, wanted) in monitors.chain(MONITORS.iter().map(|deed| (*deed, DENIED))) {
            trials.push(trial(&program, deed, Walls::Monitor, user, wanted));
        }
        trials.push(trial(&program, "hear and answer", Walls::Monitor, user, End::Done));
        trials.push(trial(&program, "abort", Walls::Monitor, user, End::Killed(libc::SIGABRT)));
        for duty in duties::names() {
            trials.push(trial(&program, duty, Sealed, user, End::Done));
            trials.push(trial(&program, duty, Old, user, End::Done));
        }
        trials.extend(ANYBODY.iter().map(|deed| trial(&program, deed, Walls::None, user, End::Done)));
        trials.push(trial(&program, "know which walls are missing", Old, user, End::Done));
        for inspection in
            ["refuse to run without a wall that it must have", "refuse to be confined with a second thread"]
        {
            trials.push(trial(&program, inspection, Walls::None, user, End::Done));
        }
        trials.push(trial(&program, "abort", Sealed, user, End::Killed(libc::SIGABRT)));
        trials.extend(outside::trials(&program, user, has("have every wall but Landlock")));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// One deed of one probe, and how it must end.
fn trial(program: &Arc<Program>, deed: &'static str, walls: Walls, user: Option<u32>, wanted: End) -> Trial {
    let program = Arc::clone(program);
    let name = format!("{}::{walls:?}::{deed}", user_name(user)).to_lowercase().replace(' ', "_");
    Trial::test(name, move || {
        let world = World::new(&program);
        let names = world.names();
        let end = world.try_deed(deed, walls, user)?;
        if end != wanted {
            return Err(Failed::from(format!("{end:?}, and not {wanted:?}")));
        }
        let untouched = (world.names(), world.file()) == (names, SECRET.to_owned());
        if walls == Walls::None || untouched { Ok(()) } else { Err("it changed something outside".into()) }
    })
}
