//! VMs on other machines are reached from the first one and from a third one, past the control
//! plane: consoles, screens, logs, dumps, checks, exports and images, each under a ticket.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use strongroom_system_tests::{Scratch, datastore, put_test_guest};

use super::machines_support::{Cables, FIRST, Guests, Machine, WITHIN};

/// Occurs nowhere but in the guest's data.
const MARKER: &[u8] = b"strongroom-streamed-marker-51d0";
const DISK_BYTES: u64 = 16 << 20;

/// A disk with data at both ends and in the middle, and holes.
fn make_disk(path: &Path) {
    let disk = File::create(path).unwrap();
    disk.set_len(DISK_BYTES).unwrap();
    disk.write_all_at(MARKER, 0).unwrap();
    let noise: Vec<u8> =
        (0..3_u32 << 20).map(|index| (index.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    disk.write_all_at(&noise, (5 << 20) + 700).unwrap();
    disk.write_all_at(MARKER, DISK_BYTES - MARKER.len() as u64).unwrap();
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_vm_on_another_machine_is_reached_as_one_on_this_one() {
    if !rustix::process::geteuid().is_root() {
        println!("network namespaces need root; this test did nothing");
        return;
    }
    let cables = Cables::lay(3);
    let scratch = Scratch::new();
    let _guests = Guests(&scratch);
    let first = Machine::new(&scratch, &cables, 0);
    let second = Machine::new(&scratch, &cables, 1);
    let site = first.starts_site_with(&format!("--listen {FIRST}:5690 --listen-guests {FIRST}:5691"));
    let host = first.lets_join(&second);
    // A person's machine: it has the API's address and certificate, and a token.
    let third = Machine::new(&scratch, &cables, 2);
    let credentials = format!(
        "--api https://{FIRST}:5690 --api-ca first-home/control/api.crt --api-token-file first-home/control/token"
    );
    let guest = put_test_guest(&scratch);
    for (name, host) in [("ds1", "host1"), ("ds2", "host2")] {
        scratch.make_directory(name);
        first.runs(&format!("datastore add {name} {} --host {host}", scratch.path(name).display()));
    }

    // An image arrives whole, converted on its way, and sealed.
    make_disk(&scratch.path("disk.raw"));
    first.program.peer("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", "disk.raw", "disk.qcow2"]);
    first.runs(&format!(
        "vm create web2 --datastore ds2 --memory 256M --net none --disk 16M --machine pc --image disk.qcow2 {guest}"
    ));
    first.runs("vm create web0 --datastore ds1 --memory 256M --net none --disk 16M");
    std::fs::write(scratch.path("user.yaml"), "#cloud-config\n").unwrap();
    first.runs("vm create web3 --datastore ds2 --memory 256M --net none --disk 16M --user-data user.yaml");
    third.runs(&format!("vm disk import web0 disk0 disk.raw {credentials}"));
    assert_eq!(datastore::occurrences(&scratch.path("ds1"), MARKER), 0);
    assert_eq!(datastore::occurrences(&scratch.path("ds2"), MARKER), 0);
    let checked = first.json("vm check web2 --data");
    assert_eq!(checked["clean"], true, "{checked}");
    for (machine, vm) in [(&first, "web2"), (&third, "web0")] {
        for format in ["raw", "qcow2", "vmdk", "vhdx"] {
            let copy = format!("{vm}.{format}");
            machine.runs(&format!("vm export {vm} {copy} --format {format} {credentials}"));
            first.program.peer("qemu-img", &["compare", "-f", "raw", "-F", format, "disk.raw", &copy]);
        }
    }

    // A guest's console, screen, dump and log.
    let place = strongroom_system_tests::take_place();
    first.runs("vm start web2");
    first.wait_until("vm show web2", "runs", |vm| vm["power"] == "running");
    let console = |machine: &Machine<'_>| {
        let typed = format!(
            "(sleep 1; for n in $(seq 100); do echo 'echo $((40+2))-is-the-answer'; sleep 1; done) | \
             timeout 100 \"$STRONGROOM\" vm console web2 {credentials} | grep --max-count 1 42-is-the-answer"
        );
        machine.shell(&typed)
    };
    for machine in [&first, &third] {
        assert!(console(machine).stdout.contains("42-is-the-answer"));
    }
    assert!(third.runs(&format!("vm console web2 --history {credentials}")).contains("42-is-the-answer"));
    // Somebody else on the host itself, who cannot use hostd's socket.
    let by_another_user = format!(
        "place=$(mktemp -d) && chmod 755 $place && cd $place && \
         cp \"$STRONGROOM\" $OLDPWD/first-home/control/api.crt $OLDPWD/first-home/control/token $place && \
         chown -R 65534 $place && setpriv --reuid=65534 --regid=65534 --clear-groups env STRONGROOM_HOME=$place/home \
         ./strongroom vm console web2 --history --api https://{FIRST}:5690 --api-ca api.crt --api-token-file token && \
         rm -r $place"
    );
    assert!(second.shell(&by_another_user).success().contains("42-is-the-answer"));
    third.runs(&format!("vm screen web2 --screenshot web2.png {credentials}"));
    assert!(std::fs::read(scratch.path("web2.png")).unwrap().starts_with(b"\x89PNG"));
    first.runs("vm dump create web2");
    third.runs(&format!("vm dump open web2 1 --to web2.core {credentials}"));
    assert!(std::fs::read(scratch.path("web2.core")).unwrap().starts_with(b"\x7fELF"));
    first.runs("vm stop web2 --force");
    drop(place);

    // What other clients do.
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest_streams/attacks.py");
    let attacked = third
        .shell(&format!(
            "python3 {} {FIRST}:5690 first-home/control/api.crt first-home/control/token",
            script.display()
        ))
        .success();
    let not_whole = "the image has not come whole";
    let other = "it is not the image of which a part is here already";
    for (attack, outcome) in [
        ("the certificate is that of the ticket", "True"),
        ("a ticket", "console_log"),
        ("a ticket used twice", "bad_ticket"),
        ("a ticket at another host", "bad_ticket"),
        ("a ticket that never was", "bad_ticket"),
        ("no ticket", "bad_hello"),
        ("no certificate and no protocol", "closed"),
        ("an image for another VM", "no image came with the ticket"),
        ("an image that is larger than the disk", "the image's disk has"),
        ("an image larger than any disk", not_whole),
        ("an answer that is none", not_whole),
        ("a client that cannot go on", not_whole),
        ("a reason without end", not_whole),
        ("no image", not_whole),
        ("a longer image after a loss", other),
        ("another image after a loss", other),
        ("a task that nobody brings its image", "cancelled"),
        ("a ticket among silent strangers", "console_log"),
        ("silent strangers", "gone"),
    ] {
        let told = attacked.lines().find_map(|line| line.strip_prefix(&format!("{attack}: ")));
        assert!(told.is_some_and(|told| told.contains(outcome)), "{attack}: {attacked}");
    }
    // The disk is what it was, and nothing is left beside it.
    first.runs("vm export web2 after.raw --format raw");
    first.program.peer("qemu-img", &["compare", "-f", "raw", "-F", "raw", "disk.raw", "after.raw"]);
    let left = first.program.run_shell("find ds2 -name '*.importing'").success();
    assert_eq!(left, "");
    host.terminate(WITHIN);
    site.terminate(WITHIN);
}
