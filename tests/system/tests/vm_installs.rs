//! A new user's VM: created, installed from a CD-ROM with a look at its screen, and then started
//! from its disk.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use strongroom_system_tests::{Scratch, Serving};

/// Timeout of a boot by emulated firmware.
const BOOTS_WITHIN: Duration = Duration::from_secs(120);
/// Timeout of a command's start or end.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

const FROM_CD: &str = "strongroom-install-6d1c: BIOS has started the CD-ROM";
const FROM_CD_BY_UEFI: &str = "strongroom-install-6d1c: UEFI has started the CD-ROM";
const FROM_DISK: &str = "strongroom-install-6d1c: BIOS has started the disk";

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_vm_is_installed_from_a_cdrom_and_looked_at() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    let iso = crate::install_media::iso(FROM_CD, FROM_CD_BY_UEFI);
    fs::write(scratch.path("elsewhere.iso"), &iso).unwrap();
    fs::write(scratch.path("disk.raw"), crate::install_media::disk(FROM_DISK)).unwrap();
    // hostd has made the directory. Only its owner can read the image, and QEMU runs as another
    // user.
    let image = scratch.path("home/hostd/boot/install.iso");
    fs::write(&image, &iso).unwrap();
    fs::set_permissions(&image, fs::Permissions::from_mode(0o600)).unwrap();

    // The refusal reveals nothing about other files of the host.
    let create =
        "vm create web1 --memory 64M --disk 16M --machine pc --net none --image disk.raw --format raw";
    let refused = serving.is_refused(&format!("{create} --cdrom elsewhere.iso"));
    let says_where =
        refused.contains("elsewhere.iso is in no directory ") && refused.contains("home/hostd/boot");
    assert!(says_where, "{refused}");
    // Removes the remains of the refusal, if there are any.
    let _ = serving.strongroom.run_shell(&script("vm delete web1 --yes"));

    let told = serving.runs(&format!("{create} --cdrom {}", image.display()));
    assert!(
        told.contains("no network card; ") && told.contains("install.iso, booted from before the disks"),
        "{told}"
    );
    assert!(serving.is_refused("vm screen web1").contains("web1 is stopped"));
    let _place = serving.take_place();
    serving.runs("vm start web1");
    says(&serving, "web1", FROM_CD);
    is_shown(&scratch, &serving);
    serving.runs("vm stop web1 --force");
    assert!(serving.runs("vm set web1 --cdrom none").contains("web1 is changed"));
    serving.runs("vm start web1");
    says(&serving, "web1", FROM_DISK);
    serving.runs("vm stop web1 --force");

    serving.runs(&format!("vm create web2 --memory 128M --disk 16M --uefi --cdrom {}", image.display()));
    serving.runs("vm start web2");
    says(&serving, "web2", FROM_CD_BY_UEFI);
    let shown = serving.runs("vm show web2");
    for line in ["  user, through passt", "UEFI, /", "QEMU ", "install.iso", "vm screen web2"] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    // It resumes with its drive.
    serving.runs("vm suspend web2");
    assert!(serving.runs("vm start web2").contains("web2 is running"));
    serving.runs("vm stop web2 --force");
    assert!(serving.is_refused("vm set web2 --net none --net user").contains("--net none"));
    serving.runs("vm set web2 --net none");
    assert!(serving.runs("vm show web2").contains("network     no network card"));
    // The error names a missing image, and a start names the next step.
    fs::remove_file(&image).unwrap();
    assert!(serving.is_refused("vm start web2").contains("there is no file "), "{}", image.display());
}

/// Waits until a VM's console output contains this text.
fn says(serving: &Serving<'_>, vm: &str, text: &str) {
    let until = Instant::now() + BOOTS_WITHIN;
    loop {
        // Before the first output there is no history.
        let told = serving.strongroom.run_shell(&script(&format!("vm console {vm} --history")));
        if told.stdout.contains(text) {
            return;
        }
        assert!(Instant::now() < until, "{vm} has not said within {BOOTS_WITHIN:?}: {text}: {told:?}");
    }
}

/// The screen of web1, which runs: as a picture, for a viewer on a socket, and for one on loopback.
fn is_shown(scratch: &Scratch, serving: &Serving<'_>) {
    let taken = serving.json("vm screen web1 --screenshot web1.png");
    let picture = fs::read(scratch.path("web1.png")).unwrap();
    assert_eq!((taken["width"].as_u64(), taken["height"].as_u64()), (Some(720), Some(400)));
    assert!(picture.starts_with(b"\x89PNG\r\n\x1a\n"));
    // Light grey, the colour of text: the screen is not black.
    assert!(picture.windows(6).any(|pixels| pixels == [0xa8; 6]), "nothing is written on it");
    assert_eq!(fs::metadata(scratch.path("web1.png")).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(serving.is_refused("vm screen web1 --screenshot web1.png").contains("web1.png"));

    let start = |name: &str, arguments: &str| {
        serving.strongroom.start_shell(name, &script(&format!("vm screen web1 {arguments}")))
    };
    let mut screen = start("screen", "--socket s.sock");
    screen.wait_for_line("that it listens", ANSWERS_WITHIN, |line| line.starts_with("Viewers of root"));
    let socket = scratch.path("s.sock");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    greets(UnixStream::connect(&socket).unwrap());
    greets(UnixStream::connect(&socket).unwrap());
    assert!(screen.terminate(ANSWERS_WITHIN).success());
    assert!(!socket.exists());

    assert!(serving.is_refused("vm screen web1 --listen 0.0.0.0:0").contains("ssh -L"));
    let mut screen = start("screen-tcp", "--listen 127.0.0.1:0");
    let line = screen.wait_for_line("where it listens", ANSWERS_WITHIN, |line| line.contains("vnc://"));
    let address = line.rsplit_once("vnc://").unwrap().1.trim().to_owned();
    greets(TcpStream::connect(&address).unwrap());
    if rustix::process::geteuid().is_root() {
        // A connection of another user of this machine is closed before the guest's screen has sent
        // anything.
        let connect = format!("cat </dev/tcp/{}", address.replace(':', "/"));
        let other = format!("exec setpriv --reuid 65534 --clear-groups -- bash -c '{connect}'");
        assert_eq!(serving.strongroom.run_shell(&other).stdout, "");
        let until = Instant::now() + ANSWERS_WITHIN;
        while !fs::read_to_string(screen.stderr_log()).unwrap().contains("was refused") {
            assert!(Instant::now() < until, "nobody is told that a viewer was refused");
        }
    }
    assert!(screen.terminate(ANSWERS_WITHIN).success());

    let events = serving.runs("event list");
    assert_eq!(events.matches("the screen of VM web1 is opened, by ").count(), 4, "{events}");
}

/// A VNC server speaks first, and names its screen once it has admitted a client.
fn greets(mut stream: impl Read + Write) {
    let mut version = [0; 12];
    stream.read_exact(&mut version).unwrap();
    assert_eq!(&version, b"RFB 003.008\n");
    stream.write_all(&version).unwrap();
    let mut security = [0; 2];
    stream.read_exact(&mut security).unwrap();
    assert_eq!(security, [1, 1]);
    stream.write_all(&[1]).unwrap();
    let mut result = [9; 4];
    stream.read_exact(&mut result).unwrap();
    assert_eq!(result, [0; 4]);
    stream.write_all(&[1]).unwrap();
    let mut size = [0; 4];
    stream.read_exact(&mut size).unwrap();
    assert_eq!(size, [720_u16.to_be_bytes(), 400_u16.to_be_bytes()].concat()[..]);
}

fn script(arguments: &str) -> String {
    format!("export STRONGROOM_HOME=\"$PWD/home\"; exec \"$STRONGROOM\" {arguments}")
}
