//! A libvirt daemon for one test.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use crate::build;
use crate::guest::Machine;
use crate::process::{Process, run};
use crate::scratch::Scratch;
use crate::session::Session;
use crate::socket::Listener;

/// Timeout from its start until it serves.
const READY_DEADLINE: Duration = Duration::from_secs(60);
/// Timeout of one virsh command. The first one probes QEMU, which takes seconds under emulation.
const VIRSH_DEADLINE: Duration = Duration::from_secs(120);
/// Timeout from the start of a domain to the guest's first connection.
const GUEST_CONNECTS_WITHIN: Duration = Duration::from_secs(60);

/// A libvirt daemon that is isolated from this machine's own.
pub struct Libvirt<'test> {
    scratch: &'test Scratch,
    uri: String,
    _daemon: Process,
}

impl<'test> Libvirt<'test> {
    /// Starts it, and waits until it serves.
    #[track_caller]
    pub fn start(scratch: &'test Scratch) -> Self {
        let directory = scratch.make_directory("libvirt");
        let notified = UnixDatagram::bind(directory.join("ready")).expect("a socket can be made");
        notified.set_read_timeout(Some(READY_DEADLINE)).expect("a time-out can be set");

        let mut command = Command::new(build::script("own-libvirtd"));
        command.arg(&directory);
        command.env("NOTIFY_SOCKET", directory.join("ready"));
        let daemon = Process::start(scratch, "libvirtd", &command);
        let mut word = [0; 64];
        let length = notified.recv(&mut word).unwrap_or_else(|error| {
            panic!("libvirtd is not ready: {error}; its stderr is in {}", daemon.stderr_log().display())
        });
        assert!(word[..length].starts_with(b"READY=1"), "libvirtd said {:?}", &word[..length]);
        let socket = directory.join("libvirt-sock");
        let uri = format!("qemu+unix:///system?socket={}", socket.display());
        Self { scratch, uri, _daemon: daemon }
    }

    /// Its connection URI.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Runs `virsh ARGUMENTS`, which must succeed. Returns its output.
    #[track_caller]
    pub fn virsh(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("virsh");
        command.args(["--quiet", "--connect", &self.uri]).args(arguments);
        run(self.scratch, &command, VIRSH_DEADLINE).success()
    }

    /// Defines the domain `name` with the test guest, with extra `parts` of `<domain>` and
    /// `devices` of `<devices>`; starts it, and waits until the guest is ready for commands.
    #[track_caller]
    pub fn boot(&self, name: &str, machine: Machine, parts: &str, devices: &str) -> Session {
        let serial = Listener::new(self.scratch, name, "session");
        let file = self.scratch.path(&format!("{name}.xml"));
        let xml = self.domain(name, machine, parts, devices, &serial);
        fs::write(&file, xml).expect("a file can be written");
        let file = file.to_string_lossy();
        // Debian 12's libvirt 9.0 ignores the reconnect delay of an NBD disk, and its schema
        // rejects it.
        let strictly: &[_] = if devices.contains("<reconnect delay") { &[] } else { &["--validate"] };
        self.virsh(&[&["define", &file], strictly].concat());
        self.virsh(&["start", name]);
        let console = self.scratch.path(&format!("{name}.console"));
        let stream = serial.accept(GUEST_CONNECTS_WITHIN, &console);
        let mut session = Session::new(stream, &serial.path().with_extension("log"));
        session.wait_until_ready();
        session
    }

    /// Defines the domain `name`, with `parts` of `<domain>` and without a boot source.
    #[track_caller]
    pub fn define(&self, name: &str, parts: &str) {
        let xml = format!(
            "<domain type='qemu'><name>{name}</name><memory unit='MiB'>32</memory>{parts}
  <os><type arch='x86_64' machine='pc'>hvm</type></os>
  <devices><emulator>/usr/bin/qemu-system-x86_64</emulator></devices></domain>"
        );
        let file = self.scratch.path(&format!("{name}.xml"));
        fs::write(&file, xml).expect("a file can be written");
        self.virsh(&["define", &file.to_string_lossy()]);
    }

    fn domain(&self, name: &str, machine: Machine, parts: &str, devices: &str, serial: &Listener) -> String {
        let guest = build::guest_directory().display();
        let mut run_guest = Command::new(build::script("run-guest"));
        run_guest.arg("--print-kernel-arguments");
        let arguments = run(self.scratch, &run_guest, VIRSH_DEADLINE).success();
        let ports = match machine {
            Machine::Pc => "",
            Machine::Q35 => {
                "<controller type='pci' index='0' model='pcie-root'/>
    <controller type='pci' model='pcie-root-port'/>
    <controller type='pci' model='pcie-root-port'/>"
            }
        };
        format!(
            "<domain type='qemu'>
  <name>{name}</name>
  <memory unit='MiB'>256</memory>
  <vcpu>1</vcpu>
  {parts}
  <os>
    <type arch='x86_64' machine='{machine}'>hvm</type>
    <kernel>{guest}/vmlinux</kernel>
    <initrd>{guest}/initramfs.cpio</initrd>
    <cmdline>{arguments}</cmdline>
  </os>
  <features><acpi/></features>
  <cpu mode='custom'><model>qemu64</model></cpu>
  <on_reboot>destroy</on_reboot>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    {devices}
    {ports}
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
    <serial type='unix'><source mode='connect' path='{serial}'/><target port='0'/></serial>
    <serial type='file'><source path='{console}'/><target port='1'/></serial>
  </devices>
</domain>
",
            machine = machine.name(),
            arguments = arguments.trim(),
            serial = serial.path().display(),
            console = self.scratch.path(&format!("{name}.console")).display(),
        )
    }
}
