//! Golden arguments, and tests that no value can inject an option.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::Value;
use strongroom_types::VmId;
use strongroom_vm::Level;

use super::*;
use crate::machine::{Board, Cpus, Growth, MacAddress, Network, SpecError, TpmSocket};

fn spec(machine: MachineType) -> MachineSpec {
    let vm = VmId::from_bytes(*b"0123456789abcdef");
    MachineSpec {
        board: Board::bare(machine),
        generation_id: "11111111-2222-4333-8444-555555555555".parse().unwrap(),
        ..MachineSpec::minimal(vm, "web1", "512M".parse().unwrap())
    }
}

fn host(connections: Vec<Connection>) -> HostFacts {
    let version = Version { major: 7, minor: 2 };
    let ovmf_code = Some("/usr/share/OVMF/OVMF_CODE_4M.fd".into());
    HostFacts { version, kvm: false, connections, ovmf_code, cdrom: None }
}

fn run() -> RunDirectory {
    RunDirectory::open(Path::new("/run/strongroom/vms/0")).unwrap()
}

/// Formats arguments with an option and its value on each line.
fn lines(arguments: &[String]) -> String {
    let mut text = String::new();
    for argument in arguments {
        text.push_str(if argument.starts_with('-') { "\n" } else { " " });
        text.push_str(argument);
    }
    text.trim_start().to_owned()
}

/// A machine with every feature.
fn everything(machine: MachineType) -> (MachineSpec, HostFacts) {
    let mut spec = spec(machine);
    spec.cpus = Cpus { sockets: 1, cores: 2, threads: 2 };
    let server =
        |name: &str| NbdExport { socket: PathBuf::from(format!("/run/{name}")), export: "e".to_owned() };
    spec.firmware = Firmware::Uefi { nvram: Some(server("nvram")) };
    spec.disks = vec![
        DiskAttachment::VhostUser { socket: "/run/disk0".into(), queues: 2 },
        DiskAttachment::Nbd { server: server("disk1"), serial: "s".to_owned(), read_only: true },
    ];
    let nic = |card| Nic::new(MacAddress::of(spec.vm, card), Network::User);
    spec.nics = vec![nic(0), nic(1), nic(2)];
    spec.tpm = Some(TpmSocket("/run/tpm".into()));
    spec.boot = Boot::DirectKernel {
        kernel: "/boot/k".into(),
        initrd: Some("/boot/i".into()),
        arguments: "quiet".to_owned(),
    };
    (spec.board.guest_agent, spec.board.vnc) = (true, true);
    spec.validate().unwrap();
    let connections =
        vec![Connection::Stream("4".to_owned()), Connection::Tap("5".to_owned()), Connection::RestrictedUser];
    (spec, host(connections))
}

#[test]
fn a_machine_that_grows_has_places_for_what_comes_and_any_other_has_none() {
    let of = |growth: Growth| {
        let spec = MachineSpec { cpus: Cpus::of_cores(2), growth, ..spec(MachineType::Q35) };
        spec.validate().unwrap();
        let all = arguments(&spec, &run(), &host(Vec::new()));
        let after = |name: &str| all[all.iter().position(|one| one == name).unwrap() + 1].clone();
        (after("-smp"), after("-m"))
    };
    let (none, memory) = of(Growth::default());
    assert_eq!(none, "cpus=2,sockets=1,cores=2,threads=1");
    assert!(!memory.contains("slots"), "{memory}");
    let most = (spec(MachineType::Q35).memory.bytes() + (256 << 20)).try_into().unwrap();
    let (cpus, grows) = of(Growth { max_cpus: Some(8), max_memory_bytes: Some(most) });
    assert_eq!(cpus, "cpus=2,maxcpus=8,sockets=1,cores=8,threads=1");
    assert_eq!(grows, format!("{memory},slots=16,maxmem={}M", most.bytes() >> 20));
}

#[test]
fn a_small_machine_word_for_word() {
    let arguments = arguments(&spec(MachineType::Pc), &run(), &host(Vec::new()));
    assert_eq!(lines(&arguments), include_str!("golden/pc.txt").trim_end());
}

#[test]
fn a_machine_has_the_version_and_the_whole_processor_that_it_is_to_have() {
    let of = |machine: MachineType, version: Option<&str>, processor: Option<&str>, kvm: bool| {
        let mut spec = spec(machine);
        spec.board.machine_type = version.map(|name| name.parse().unwrap());
        spec.board.processor = processor.map(|name| name.parse().unwrap());
        spec.validate().unwrap();
        let all = arguments(&spec, &run(), &HostFacts { kvm, ..host(Vec::new()) });
        let after = |name: &str| all[all.iter().position(|one| one == name).unwrap() + 1].clone();
        let machine = after("-machine");
        (machine.split(',').next().unwrap().to_owned(), after("-cpu"))
    };
    let own = |kvm| of(MachineType::Q35, Some("pc-q35-7.1"), None, kvm);
    assert_eq!(own(false), ("pc-q35-7.1".to_owned(), "max".to_owned()));
    assert_eq!(own(true).1, "host");
    assert_eq!(of(MachineType::Pc, Some("pc-i440fx-7.2"), Some("host"), true).0, "pc-i440fx-7.2");
    let (machine, model) = of(MachineType::Pc, None, Some("Haswell-noTSX"), true);
    assert_eq!((machine.as_str(), model.as_str()), ("pc", "Haswell-noTSX,enforce=on"));
    let golden: String =
        Level::ALL.map(|level| of(MachineType::Q35, None, Some(level.as_str()), true).1 + "\n").concat();
    assert_eq!(golden, include_str!("golden/levels.txt"));
}

#[test]
fn a_version_of_another_board_is_refused() {
    let mut spec = spec(MachineType::Pc);
    spec.board.machine_type = Some("pc-q35-7.2".parse().unwrap());
    assert!(matches!(spec.validate(), Err(SpecError::Board(_))));
}

#[test]
fn a_machine_with_everything_word_for_word() {
    let (spec, host) = everything(MachineType::Q35);
    let arguments = arguments(&spec, &run(), &host);
    assert_eq!(lines(&arguments), include_str!("golden/q35.txt").trim_end());
}

#[test]
fn a_cdrom_is_the_open_file_read_only_and_booted_from_first() {
    for (machine, bus) in [(MachineType::Pc, "ide.1"), (MachineType::Q35, "sata.0")] {
        let mut spec = spec(machine);
        let host = HostFacts { cdrom: Some(4), ..host(Vec::new()) };
        let drive = |spec: &MachineSpec| {
            let arguments = arguments(spec, &run(), &host);
            assert!(arguments.contains(&"fd=4,set=1,opaque=cdrom".to_owned()), "{arguments:?}");
            let json = arguments.iter().filter_map(|text| serde_json::from_str::<Value>(text).ok());
            let json: Vec<Value> = json.filter(|value| value.is_object()).collect();
            let node = json.iter().find(|value| value["node-name"] == "cdrom").unwrap();
            assert_eq!((&node["filename"], &node["read-only"]), (&json!("/dev/fdset/1"), &json!(true)));
            json.into_iter().find(|value| value["drive"] == "cdrom").unwrap()
        };
        let cdrom = drive(&spec);
        assert_eq!((&cdrom["bus"], &cdrom["bootindex"]), (&json!(bus), &json!(0)));
        spec.boot = Boot::DirectKernel { kernel: "/boot/k".into(), initrd: None, arguments: String::new() };
        assert_eq!(drive(&spec)["bootindex"], Value::Null, "the kernel's place");
    }
}

#[test]
fn an_order_is_kept_and_what_is_not_in_it_is_not_booted_from() {
    let (mut spec, host) = everything(MachineType::Q35);
    let host = HostFacts { cdrom: Some(4), ..host };
    spec.boot = Boot::Disk;
    spec.boot_order = vec![BootFrom::Disk(1), BootFrom::Nic(2), BootFrom::Cdrom];
    spec.validate().unwrap();
    let arguments = arguments(&spec, &run(), &host);
    let devices = arguments.iter().filter_map(|text| serde_json::from_str::<Value>(text).ok());
    let devices: Vec<Value> = devices.filter(|value| value["driver"].is_string()).collect();
    let order = |id: &str| devices.iter().find(|device| device["id"] == id).unwrap()["bootindex"].clone();
    let placed = ["disk1", "nic2", "cdrom0", "disk0", "nic0", "nic1"].map(order);
    assert_eq!(placed, [json!(0), json!(1), json!(2), Value::Null, Value::Null, Value::Null]);
    let rom = |id: &str| devices.iter().find(|device| device["id"] == id).unwrap().get("romfile").cloned();
    assert_eq!((rom("nic2"), rom("nic0")), (None, Some(json!(""))), "only the one that boots has a ROM");
    for gone in [BootFrom::Disk(2), BootFrom::Nic(3)] {
        spec.boot_order = vec![gone];
        assert!(spec.validate().is_err(), "{gone:?}");
    }
}

#[test]
fn a_newer_qemu_looks_for_lost_servers_sooner() {
    let (spec, host) = everything(MachineType::Pc);
    let newer = HostFacts { version: Version { major: 10, minor: 0 }, ..host.clone() };
    let chardev = |host: &HostFacts| {
        let arguments = arguments(&spec, &run(), host);
        arguments.into_iter().find(|argument| argument.contains("id=disk0,")).unwrap()
    };
    assert_eq!(chardev(&host), "socket,id=disk0,path=/run/disk0,reconnect=1");
    assert_eq!(chardev(&newer), "socket,id=disk0,path=/run/disk0,reconnect-ms=20");
}

/// A parsed argument: names, and values.
#[derive(Debug, PartialEq)]
enum Said {
    Option(String),
    Json(Value),
    List(String, BTreeMap<String, Vec<String>>),
    Plain(String),
}

/// Options whose value has no syntax.
const PLAIN: [&str; 3] = ["-kernel", "-initrd", "-append"];

/// Parses arguments as QEMU does (`system/vl.c`, `util/qemu-option.c`): an option takes the next
/// argument, whatever it is; an opening brace begins JSON; a comma ends a value unless it is
/// doubled.
fn as_qemu_reads(arguments: &[String]) -> Vec<Said> {
    const FLAGS: [&str; 3] = ["-S", "-no-user-config", "-nodefaults"];
    let mut said = Vec::new();
    let mut rest = arguments.iter();
    while let Some(option) = rest.next() {
        assert!(option.starts_with('-'), "{option:?} stands where an option has to");
        said.push(Said::Option(option.clone()));
        if FLAGS.contains(&option.as_str()) {
            continue;
        }
        let value = rest.next().unwrap();
        said.push(if PLAIN.contains(&option.as_str()) {
            Said::Plain(value.clone())
        } else if value.starts_with('{') {
            Said::Json(serde_json::from_str(value).unwrap())
        } else {
            list(value)
        });
    }
    said
}

fn list(value: &str) -> Said {
    // A placeholder that no value contains: U+10FFFF is reserved.
    let parts = value.replace(",,", "\u{10ffff}");
    let whole = |text: &str| text.replace('\u{10ffff}', ",");
    let (mut first, mut keys) = (String::new(), BTreeMap::<String, Vec<String>>::new());
    for (number, part) in parts.split(',').enumerate() {
        match part.split_once('=') {
            Some((key, value)) => keys.entry(key.to_owned()).or_default().push(whole(value)),
            None if number == 0 => first = whole(part),
            None => panic!("{part:?} of {value:?} would be an option of its own"),
        }
    }
    Said::List(first, keys)
}

/// Texts with characters that are special to some parser.
fn texts(most: usize) -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just(",".to_owned()),
        Just("=".to_owned()),
        Just("-".to_owned()),
        Just("\n".to_owned()),
        Just("\"".to_owned()),
        Just("{".to_owned()),
        Just("}".to_owned()),
        Just("%s".to_owned()),
        Just("-S".to_owned()),
        Just(",id=x".to_owned()),
        Just("é".to_owned()),
        "[a-z]{1,3}",
    ];
    prop::collection::vec(piece, 0..8).prop_map(move |pieces| {
        let mut text = pieces.concat();
        while text.len() > most {
            text.pop();
        }
        text
    })
}

/// Paths with such characters, as far as paths can have them.
fn paths() -> impl Strategy<Value = PathBuf> {
    texts(40).prop_map(|text| PathBuf::from(format!("/{}x", text.replace(['\n', '.'], ""))))
}

proptest! {
    #[test]
    fn no_value_says_anything_but_itself(
        name in texts(200), serial in texts(20), export in texts(50), kernel_arguments in texts(300),
        paths in prop::collection::vec(paths(), 6), machine in prop::bool::ANY,
    ) {
        let machine = if machine { MachineType::Pc } else { MachineType::Q35 };
        let (mut hostile, host) = everything(machine);
        let harmless = arguments(&hostile, &run(), &host);
        hostile.name = name.clone();
        let server = |path: &PathBuf| NbdExport { socket: path.clone(), export: export.clone() };
        hostile.firmware = Firmware::Uefi { nvram: Some(server(&paths[0])) };
        hostile.disks = vec![
            DiskAttachment::VhostUser { socket: paths[1].clone(), queues: 2 },
            DiskAttachment::Nbd { server: server(&paths[2]), serial: serial.clone(), read_only: true },
        ];
        hostile.tpm = Some(TpmSocket(paths[3].clone()));
        hostile.boot = Boot::DirectKernel {
            kernel: paths[4].clone(), initrd: Some(paths[5].clone()), arguments: kernel_arguments.clone(),
        };
        prop_assert_eq!(hostile.validate(), Ok(()));
        let hostile = as_qemu_reads(&arguments(&hostile, &run(), &host));
        let mut expected = as_qemu_reads(&harmless);
        // Only these values may differ; options and keys must be the same.
        let text = |path: &PathBuf| path.to_str().unwrap().to_owned();
        for said in &mut expected {
            replace(said, &[
                ("web1", name.clone()), ("/run/nvram", text(&paths[0])), ("/run/disk0", text(&paths[1])),
                ("/run/disk1", text(&paths[2])), ("/run/tpm", text(&paths[3])), ("/boot/k", text(&paths[4])),
                ("/boot/i", text(&paths[5])), ("quiet", kernel_arguments.clone()), ("e", export.clone()),
                ("s", serial.clone()),
            ]);
        }
        prop_assert_eq!(hostile, expected);
    }
}

fn replace(said: &mut Said, values: &[(&str, String)]) {
    let other = |value: &mut String| {
        if let Some((_, other)) = values.iter().find(|(known, _)| known == value) {
            value.clone_from(other);
        }
    };
    match said {
        Said::Option(_) => {}
        Said::Plain(value) => other(value),
        Said::List(_, keys) => keys.values_mut().flatten().for_each(other),
        Said::Json(Value::Object(properties)) => {
            for property in properties.values_mut() {
                match property {
                    Value::String(value) => other(value),
                    Value::Object(inner) => inner.values_mut().for_each(|value| {
                        if let Value::String(value) = value {
                            other(value);
                        }
                    }),
                    _ => {}
                }
            }
        }
        Said::Json(_) => {}
    }
}

#[test]
fn what_cannot_be_a_machine_is_refused() {
    type Change = fn(&mut MachineSpec);
    let changes: [(&str, Change); 9] = [
        ("a zero byte", |spec| spec.name = "a\0b".to_owned()),
        ("a long name", |spec| spec.name = "a".repeat(256)),
        ("no processor", |spec| spec.cpus.cores = 0),
        ("processors beyond counting", |spec| spec.cpus = Cpus { sockets: 300, cores: 300, threads: 2 }),
        ("a relative path", |spec| {
            spec.disks[0] = DiskAttachment::VhostUser { socket: "disk".into(), queues: 1 }
        }),
        ("a way out", |spec| spec.tpm = Some(TpmSocket("/run/../etc".into()))),
        ("a long socket", |spec| spec.tpm = Some(TpmSocket(format!("/{}", "a".repeat(107)).into()))),
        ("no queue", |spec| spec.disks[0] = DiskAttachment::VhostUser { socket: "/disk".into(), queues: 0 }),
        ("many disks", |spec| spec.disks = vec![spec.disks[0].clone(); 17]),
    ];
    for (what, change) in changes {
        let (mut spec, _) = everything(MachineType::Q35);
        change(&mut spec);
        assert!(spec.validate().is_err(), "{what}");
    }
}
