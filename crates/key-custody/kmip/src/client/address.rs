//! Server addresses.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The port that IANA gave to KMIP.
pub const KMIP_PORT: u16 = 5696;

/// The longest name of a host, in bytes (RFC 1035, 2.3.4).
const HOST_BYTES_MAX: usize = 253;

/// A server by name or address, and its port: `kms1`, `kms1.corp.example:5696`, `192.0.2.1:5696`,
/// `[2001:db8::1]:5696`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerAddress {
    host: String,
    port: u16,
}

/// A text that is not a server's address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{0}' is no server; write HOST or HOST:PORT, an IPv6 address in brackets as in [2001:db8::1]:5696")]
pub struct ServerAddressError(String);

impl ServerAddress {
    /// The host: a DNS name or an IP address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for ServerAddress {
    type Err = ServerAddressError;

    fn from_str(text: &str) -> Result<Self, ServerAddressError> {
        let error = || ServerAddressError(text.to_owned());
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, behind) = rest.split_once(']').ok_or_else(error)?;
                host.parse::<std::net::Ipv6Addr>().map_err(|_| error())?;
                (
                    host,
                    if behind.is_empty() { None } else { Some(behind.strip_prefix(':').ok_or_else(error)?) },
                )
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
        if host.is_empty() || host.len() > HOST_BYTES_MAX || !host.bytes().all(plain) {
            return Err(error());
        }
        let port = match port {
            Some(digits) => digits.parse().ok().filter(|port| *port != 0).ok_or_else(error)?,
            None => KMIP_PORT,
        };
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for (text, shown) in [
            ("kms1", "kms1:5696"),
            ("kms1.corp.example:443", "kms1.corp.example:443"),
            ("192.0.2.1:1", "192.0.2.1:1"),
            ("[2001:db8::1]", "[2001:db8::1]:5696"),
            ("[::1]:5697", "[::1]:5697"),
        ] {
            assert_eq!(text.parse::<ServerAddress>().unwrap().to_string(), shown);
        }
        for text in ["", ":1", "a:", "a:0", "a:65536", "a b", "::1", "[::1", "[::1]x", "[a]:1", "a\n:1", "é"]
        {
            assert!(text.parse::<ServerAddress>().is_err(), "{text}");
        }
    }
}
