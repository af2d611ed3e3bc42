//! The URI of an export.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

use crate::listen::Address;

/// The URI by which a client connects to the export of this name ("The NBD Uniform Resource
/// Indicator"). Over TCP it requests TLS, which is required there.
pub fn uri(address: &Address, export: &str) -> String {
    let export = percent_encoded(export.as_bytes(), b"");
    match address {
        Address::Unix(path) => {
            let path = percent_encoded(path.as_os_str().as_bytes(), b"/");
            format!("nbd+unix:///{export}?socket={path}")
        }
        Address::Tcp(address) => format!("nbds://{address}/{export}"),
    }
}

/// Percent-encodes bytes (RFC 3986, 2.1); those in `plain` stay as they are, like unreserved
/// characters.
fn percent_encoded(bytes: &[u8], plain: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) || plain.contains(byte) {
            text.push(char::from(*byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_are_encoded() {
        let socket = Address::Unix("/run/a b&c".into());
        assert_eq!(uri(&socket, "ä/"), "nbd+unix:///%C3%A4%2F?socket=/run/a%20b%26c");
        let tcp = Address::Tcp("[::1]:10809".parse().unwrap());
        assert_eq!(uri(&tcp, "vm1"), "nbds://[::1]:10809/vm1");
    }
}
