//! A client of the key server that is as patient as PyKMIP's and kmip-go's on a busy machine.

use std::path::Path;
use std::time::Duration;

use strongroom_kmip::client::{Client, ClientOptions, TlsFiles};

/// Timeout of an answer while other tests keep the disk busy. A killed server closes the
/// connection.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// A client with the certificate and key in a directory, for the server at this address.
pub fn client(kmip: &str, directory: &Path) -> Client {
    let path = |file: &str| directory.join(format!("{file}.pem"));
    let tls = TlsFiles { authority: path("ca"), certificate: path("cert"), key: path("key") };
    let mut options = ClientOptions::new(kmip.parse().unwrap(), tls);
    options.server_name = Some("localhost".to_owned());
    options.connect_timeout = ANSWERS_WITHIN;
    options.request_timeout = ANSWERS_WITHIN;
    Client::new(options).unwrap()
}
