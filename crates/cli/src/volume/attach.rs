//! Texts to paste for attaching an exposed volume to a virtual machine: QEMU's arguments, QMP
//! commands, and the parts of a libvirt domain.
//!
//! Names come from people and may contain any character; each text is quoted for the syntaxes that
//! it passes through.

use std::fmt::Write;
use std::path::Path;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};
use strongroom_frontend::listen::Address;
use strongroom_libvirt::device::{self, NBD_RECONNECT_SECONDS, SHARED_MEMORY, VHOST_USER_RECONNECT_SECONDS};
use strongroom_types::shell_word;

/// libvirt's name of the first virtio disk.
const LIBVIRT_TARGET: &str = "vda";

/// The form of the texts in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Show {
    /// QEMU command line
    #[default]
    Qemu,
    /// QMP commands that attach the volume to a running guest
    Qmp,
    /// Elements of a libvirt domain
    Libvirt,
}

/// The texts for attaching one exposed volume, ready to paste.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Attachment {
    /// Arguments of `qemu-system-…`, quoted for a shell. The node or character device is called
    /// `disk0`.
    pub qemu_arguments: String,
    /// QMP commands, in order.
    pub qmp_commands: Vec<Value>,
    /// The element that the libvirt domain needs as a child of `<domain>`, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub libvirt_memory_backing: Option<&'static str>,
    /// A libvirt device: a child of `<devices>`, or a file for `virsh attach-device`.
    pub libvirt_disk: String,
}

impl Attachment {
    /// For a volume that is exposed over vhost-user.
    pub fn vhost_user(socket: &Path, queues: u16) -> Self {
        Self {
            qemu_arguments: qemu_vhost_user(socket, queues),
            qmp_commands: qmp_vhost_user(socket, queues),
            libvirt_memory_backing: Some(SHARED_MEMORY),
            libvirt_disk: device::vhost_user(socket, queues, LIBVIRT_TARGET, None),
        }
    }

    /// For a volume that is exposed over NBD.
    pub fn nbd(address: &Address, export: &str, read_only: bool) -> Self {
        Self {
            qemu_arguments: qemu_nbd(address, export, read_only),
            qmp_commands: qmp_nbd(address, export, read_only),
            libvirt_memory_backing: None,
            libvirt_disk: device::nbd(address, export, read_only, LIBVIRT_TARGET, None),
        }
    }

    /// The lines of one form, indented below a sentence.
    pub fn show(&self, show: Show) -> String {
        let mut text = String::new();
        match show {
            Show::Qemu => text = format!("qemu-system-x86_64 ... {}", self.qemu_arguments),
            Show::Qmp => {
                for command in &self.qmp_commands {
                    // Writing to a String cannot fail.
                    let _ = writeln!(text, "{command}");
                }
            }
            Show::Libvirt => {
                if let Some(memory_backing) = self.libvirt_memory_backing {
                    let _ = writeln!(text, "<!-- in <domain> -->\n{memory_backing}");
                }
                text.push_str("<!-- in <devices>, or a file for: virsh attach-device DOMAIN FILE -->\n");
                text.push_str(&self.libvirt_disk);
            }
        }
        text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
    }
}

/// QEMU's arguments for a virtio disk in shared memory: the guest's memory must be shareable.
pub fn qemu_vhost_user(socket: &Path, queues: u16) -> String {
    let path = qemu_value(&socket.to_string_lossy());
    let chardev =
        shell_word(&format!("socket,id=disk0,path={path},reconnect={VHOST_USER_RECONNECT_SECONDS}"));
    format!(
        "-m 1G -object memory-backend-memfd,id=memory0,size=1G,share=on -machine memory-backend=memory0 \
         -chardev {chardev} -device vhost-user-blk-pci,chardev=disk0,num-queues={queues}"
    )
}

/// QEMU's arguments for an NBD export. The client waits for a restarted server, so that its guest
/// sees a pause and not an error.
pub fn qemu_nbd(address: &Address, export: &str, read_only: bool) -> String {
    let (before, server, after) = match address {
        Address::Unix(path) => {
            let path = qemu_value(&path.to_string_lossy());
            ("", format!("server.type=unix,server.path={path}"), "")
        }
        Address::Tcp(address) => (
            "-object tls-creds-x509,id=tls0,endpoint=client,dir=CERTIFICATES ",
            format!("server.type=inet,server.host={},server.port={}", address.ip(), address.port()),
            ",tls-creds=tls0",
        ),
    };
    let access = if read_only { ",read-only=on" } else { ",discard=unmap" };
    let export = qemu_value(export);
    let blockdev = shell_word(&format!(
        "driver=nbd,node-name=disk0,{server},export={export},reconnect-delay={NBD_RECONNECT_SECONDS}{access}{after}"
    ));
    format!("{before}-blockdev {blockdev} -device virtio-blk-pci,drive=disk0")
}

/// The QMP commands for a running guest. On the machine type q35 the device also needs `"bus"`: an
/// empty pcie-root-port.
fn qmp_vhost_user(socket: &Path, queues: u16) -> Vec<Value> {
    let address = json!({ "type": "unix", "data": { "path": socket.to_string_lossy() } });
    let data = json!({ "addr": address, "server": false, "reconnect": VHOST_USER_RECONNECT_SECONDS });
    let backend = json!({ "type": "socket", "data": data });
    let device = json!({
        "driver": "vhost-user-blk-pci", "id": "disk0", "chardev": "disk0", "num-queues": queues,
    });
    vec![
        json!({ "execute": "chardev-add", "arguments": { "id": "disk0", "backend": backend } }),
        json!({ "execute": "device_add", "arguments": device }),
    ]
}

/// The QMP commands for a running guest.
fn qmp_nbd(address: &Address, export: &str, read_only: bool) -> Vec<Value> {
    let mut commands = Vec::new();
    let mut node = json!({
        "driver": "nbd", "node-name": "disk0", "export": export, "reconnect-delay": NBD_RECONNECT_SECONDS,
    });
    match address {
        Address::Unix(path) => node["server"] = json!({ "type": "unix", "path": path.to_string_lossy() }),
        Address::Tcp(address) => {
            let credentials = json!({
                "qom-type": "tls-creds-x509", "id": "tls0", "endpoint": "client", "dir": "CERTIFICATES",
            });
            commands.push(json!({ "execute": "object-add", "arguments": credentials }));
            let (host, port) = (address.ip().to_string(), address.port().to_string());
            node["server"] = json!({ "type": "inet", "host": host, "port": port });
            node["tls-creds"] = "tls0".into();
        }
    }
    match read_only {
        true => node["read-only"] = true.into(),
        false => node["discard"] = "unmap".into(),
    }
    let device = json!({ "driver": "virtio-blk-pci", "id": "disk0", "drive": "disk0" });
    commands.push(json!({ "execute": "blockdev-add", "arguments": node }));
    commands.push(json!({ "execute": "device_add", "arguments": device }));
    commands
}

/// A value in QEMU's key=value lists, where commas are doubled.
fn qemu_value(text: &str) -> String {
    text.replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_survive_qemus_syntax_and_the_shells() {
        assert_eq!(
            qemu_nbd(&Address::Unix("/run/a,b c'd".into()), "vm,1", false),
            r"-blockdev 'driver=nbd,node-name=disk0,server.type=unix,server.path=/run/a,,b c'\''d,export=vm,,1,reconnect-delay=60,discard=unmap' -device virtio-blk-pci,drive=disk0"
        );
        assert_eq!(
            qemu_vhost_user(Path::new("/run/a,b c'd"), 4),
            r"-m 1G -object memory-backend-memfd,id=memory0,size=1G,share=on -machine memory-backend=memory0 -chardev 'socket,id=disk0,path=/run/a,,b c'\''d,reconnect=1' -device vhost-user-blk-pci,chardev=disk0,num-queues=4"
        );
    }

    #[test]
    fn tls_needs_credentials_everywhere() {
        let address = Address::Tcp("[::1]:10809".parse().unwrap());
        let attachment = Attachment::nbd(&address, "vm1", false);
        assert!(attachment.qemu_arguments.contains("server.host=::1,server.port=10809"));
        assert!(attachment.qemu_arguments.starts_with("-object tls-creds-x509,"));
        assert_eq!(attachment.qmp_commands[0]["arguments"]["qom-type"], "tls-creds-x509");
        assert_eq!(attachment.qmp_commands[1]["arguments"]["tls-creds"], "tls0");
        assert!(attachment.libvirt_disk.contains("name='vm1' tls='yes'"));
        assert!(attachment.libvirt_disk.contains("<host transport='tcp' name='::1' port='10809'/>"));
    }

    #[test]
    fn a_domain_gets_shared_memory_only_where_it_is_needed() {
        let shared = Attachment::vhost_user(Path::new("/run/vm1.sock"), 4);
        assert_eq!(
            shared.qmp_commands[0]["arguments"]["backend"]["data"]["addr"]["data"]["path"],
            "/run/vm1.sock"
        );
        let shown = shared.show(Show::Libvirt);
        assert!(
            shown.contains("\n  <memoryBacking>\n")
                && shown.contains("\n    <driver name='qemu' type='raw' queues='4'/>")
        );
        let copied = Attachment::nbd(&Address::Unix("/run/vm1.sock".into()), "vm1", false);
        assert!(!copied.show(Show::Libvirt).contains("memoryBacking"));
        assert_eq!(copied.show(Show::Qmp).lines().count(), 2);
    }
}
