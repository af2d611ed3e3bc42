//! A client of the key server, as PyKMIP's and kmip-go's are: one that waits for a busy machine.

use std::path::Path;
use std::time::Duration;

use strongroom_kmip::client::{Client, ClientOptions, TlsFiles};

/// How long an answer may take while other tests keep the disk busy. A server that is killed hangs
/// up.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// Whoever has the certificate and key in a directory, at the server of that address.
pub fn client(kmip: &str, directory: &Path) -> Client {
    let path = |file: &str| directory.join(format!("{file}.pem"));
    let tls = TlsFiles { authority: path("ca"), certificate: path("cert"), key: path("key") };
    let mut options = ClientOptions::new(kmip.parse().unwrap(), tls);
    options.server_name = Some("localhost".to_owned());
    options.connect_timeout = ANSWERS_WITHIN;
    options.request_timeout = ANSWERS_WITHIN;
    Client::new(options).unwrap()
}
