//! A volume as a device in a libvirt domain's XML.
//!
//! Names come from people and may be odd; each is quoted.

use std::fmt::Write;
use std::path::Path;

use strongroom_frontend::listen::Address;

/// How long QEMU's NBD client waits for a server that is restarted before its guest sees an error.
pub const NBD_RECONNECT_SECONDS: u32 = 60;
/// How often QEMU looks for a vhost-user server that is gone; a second is the shortest that it
/// knows before version 9.2.
pub const VHOST_USER_RECONNECT_SECONDS: u32 = 1;

/// A vhost-user server maps the guest's memory, so that must be a file.
pub const SHARED_MEMORY: &str = "\
<memoryBacking>
  <source type='memfd'/>
  <access mode='shared'/>
</memoryBacking>";

/// Queues of a vhost-user disk: a guest uses as many as it has processors, up to this.
pub const SUGGESTED_QUEUES: u16 = 4;

/// A libvirt device for a virtio disk in shared memory; `target` is the name that libvirt knows it
/// by, `alias` one of ours.
pub fn vhost_user(socket: &Path, queues: u16, target: &str, alias: Option<&str>) -> String {
    let (socket, target) = (xml_attribute(&socket.to_string_lossy()), xml_attribute(target));
    let alias = alias_element(alias);
    format!(
        "\
<disk type='vhostuser' device='disk'>
  <driver name='qemu' type='raw' queues='{queues}'/>
  <source type='unix' path='{socket}'>
    <reconnect enabled='yes' timeout='{VHOST_USER_RECONNECT_SECONDS}'/>
  </source>
  <target dev='{target}' bus='virtio'/>{alias}
</disk>"
    )
}

/// A libvirt device for an NBD export; `target` is the name that libvirt knows it by, `alias` one
/// of ours. Over TCP, libvirt takes the client's certificate from `nbd_tls_x509_cert_dir` in its
/// `qemu.conf`.
pub fn nbd(address: &Address, export: &str, read_only: bool, target: &str, alias: Option<&str>) -> String {
    let (tls, host) = match address {
        Address::Unix(path) => {
            ("", format!("transport='unix' socket='{}'", xml_attribute(&path.to_string_lossy())))
        }
        Address::Tcp(address) => {
            (" tls='yes'", format!("transport='tcp' name='{}' port='{}'", address.ip(), address.port()))
        }
    };
    let (discard, access) = if read_only { ("", "\n  <readonly/>") } else { (" discard='unmap'", "") };
    let (export, target, alias) = (xml_attribute(export), xml_attribute(target), alias_element(alias));
    format!(
        "\
<disk type='network' device='disk'>
  <driver name='qemu' type='raw'{discard}/>
  <source protocol='nbd' name='{export}'{tls}>
    <host {host}/>
    <reconnect delay='{NBD_RECONNECT_SECONDS}'/>
  </source>
  <target dev='{target}' bus='virtio'/>{access}{alias}
</disk>"
    )
}

fn alias_element(alias: Option<&str>) -> String {
    alias.map(|alias| format!("\n  <alias name='{}'/>", xml_attribute(alias))).unwrap_or_default()
}

/// A value between single quotes in XML. White space other than blanks would be normalised to them
/// (XML 1.0, 3.3.3). Other control characters cannot be said in XML at all; their references make a
/// parser refuse the document.
fn xml_attribute(text: &str) -> String {
    let mut value = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => value.push_str("&amp;"),
            '<' => value.push_str("&lt;"),
            '>' => value.push_str("&gt;"),
            '\'' => value.push_str("&apos;"),
            '"' => value.push_str("&quot;"),
            control if control.is_control() => {
                // Writing to a String cannot fail.
                let _ = write!(value, "&#{};", u32::from(control));
            }
            plain => value.push(plain),
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    const ODD: &str = "/run/a,b c'd<&\">";

    #[test]
    fn odd_names_survive_xml() {
        assert_eq!(xml_attribute(ODD), "/run/a,b c&apos;d&lt;&amp;&quot;&gt;");
        assert_eq!(xml_attribute("tab\tline\nünïcode"), "tab&#9;line&#10;ünïcode");
        let disk = nbd(&Address::Unix(ODD.into()), "vm'1", true, "vdb", None);
        assert!(
            disk.contains("name='vm&apos;1'")
                && disk.contains("socket='/run/a,b c&apos;d&lt;&amp;&quot;&gt;'")
        );
        assert!(disk.contains("<target dev='vdb' bus='virtio'/>") && disk.contains("<readonly/>"));
        assert!(!disk.contains("discard"), "libvirt refuses to discard on a read-only disk's behalf");
    }
}
