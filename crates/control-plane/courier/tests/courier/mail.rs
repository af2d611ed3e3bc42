//! Mail through a relay that speaks SMTP with STARTTLS and asks for a password.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use base64ct::{Base64, Encoding};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use strongroom_api::alarm::{Alarm, AlarmKind, Severity};
use strongroom_api::recipient::{AlarmChange, Destination, Message, Notice};
use strongroom_api::{ObjectKind, ObjectRef};
use strongroom_control::courier::{Courier, Undelivered};
use strongroom_courier::{Couriers, MailRelay};
use uuid::Uuid;

use crate::tls::{Tls, listen};

const USER: &str = "strongroom";
const PASSWORD: &str = "correct horse";

/// What a relay took.
#[derive(Debug, Default)]
struct Mail {
    is_encrypted: bool,
    user: String,
    to: Vec<String>,
    text: String,
}

struct Relay {
    port: u16,
    ca: String,
    got: Receiver<Mail>,
}

impl Relay {
    /// A relay that offers STARTTLS, or does not.
    fn start(offers_tls: bool) -> Self {
        let Tls { config, pem: ca } = Tls::new();
        let (sent, got) = channel();
        let port = listen(move |stream| drop(serve(stream, &config, offers_tls, &sent)));
        Self { port, ca, got }
    }

    /// Couriers that are set up with it.
    fn couriers(&self, home: &Path, password: &str) -> Couriers {
        let file = |name: &str, content: &str| {
            let path = home.join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        let settings = MailRelay {
            relay: format!("smtp://127.0.0.1:{}", self.port).parse().unwrap(),
            from: "strongroom@example.com".parse().unwrap(),
            user: Some(USER.to_owned()),
            password_file: Some(file("password", &format!("{password}\n"))),
            ca_file: Some(file("ca.pem", &self.ca)),
        };
        settings.write(&MailRelay::file(home)).unwrap();
        Couriers::open(home).unwrap()
    }
}

fn serve(
    mut stream: TcpStream,
    config: &Arc<ServerConfig>,
    offers_tls: bool,
    sent: &Sender<Mail>,
) -> std::io::Result<()> {
    stream.write_all(b"220 relay\r\n")?;
    let mut mail = Mail::default();
    let plain = BufReader::new(stream.try_clone()?);
    if converse(plain, &mut stream, offers_tls, &mut mail, sent)? {
        stream.write_all(b"220 go\r\n")?;
        mail.is_encrypted = true;
        let tls = StreamOwned::new(ServerConnection::new(Arc::clone(config)).unwrap(), stream);
        encrypted(tls, mail, sent)?;
    }
    Ok(())
}

fn encrypted(
    tls: StreamOwned<ServerConnection, TcpStream>,
    mut mail: Mail,
    sent: &Sender<Mail>,
) -> std::io::Result<()> {
    // Reads byte by byte, so one buffer serves both directions.
    struct Shared(std::rc::Rc<std::cell::RefCell<StreamOwned<ServerConnection, TcpStream>>>);
    impl Read for Shared {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.0.borrow_mut().read(buffer)
        }
    }
    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.borrow_mut().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            self.0.borrow_mut().flush()
        }
    }
    let shared = std::rc::Rc::new(std::cell::RefCell::new(tls));
    let reader = BufReader::new(Shared(std::rc::Rc::clone(&shared)));
    converse(reader, &mut Shared(shared), false, &mut mail, sent).map(drop)
}

/// Speaks SMTP until the client ends or asks for TLS, which is the answer.
fn converse(
    mut reader: impl BufRead,
    writer: &mut impl Write,
    offers_tls: bool,
    mail: &mut Mail,
    sent: &Sender<Mail>,
) -> std::io::Result<bool> {
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(false);
        }
        let command = line.trim_end();
        let answer = match command.split([' ', ':']).next().unwrap_or_default() {
            "EHLO" if offers_tls => "250-relay\r\n250 STARTTLS\r\n",
            "EHLO" => "250-relay\r\n250 AUTH PLAIN\r\n",
            "STARTTLS" => return Ok(true),
            "AUTH" => {
                let given = command.rsplit(' ').next().unwrap();
                let given = String::from_utf8(Base64::decode_vec(given).unwrap()).unwrap();
                let mut parts = given.split('\0').skip(1);
                mail.user = parts.next().unwrap().to_owned();
                if parts.next() == Some(PASSWORD) { "235 ok\r\n" } else { "535 no\r\n" }
            }
            "RCPT" => {
                mail.to.push(command.to_owned());
                "250 ok\r\n"
            }
            "DATA" => {
                writer.write_all(b"354 go\r\n")?;
                while !mail.text.ends_with("\r\n.\r\n") {
                    reader.read_line(&mut mail.text)?;
                }
                sent.send(std::mem::take(mail)).unwrap();
                "250 ok\r\n"
            }
            "QUIT" => {
                writer.write_all(b"221 bye\r\n")?;
                return Ok(false);
            }
            _ => "250 ok\r\n",
        };
        writer.write_all(answer.as_bytes())?;
        writer.flush()?;
    }
}

fn to() -> Destination {
    Destination::Mail { address: "ops@example.com".parse().unwrap() }
}

fn message(says: &str) -> Message {
    let alarm = Alarm {
        kind: AlarmKind::HostDown,
        severity: Severity::Critical,
        object: ObjectRef { kind: ObjectKind::Host, id: None, name: "host2".to_owned() },
        message: says.to_owned(),
        next_step: "see to it that hostd runs there".to_owned(),
        since_unix_ms: 1_700_000_000_000,
    };
    let notice =
        |event, change| Notice { event, at_unix_ms: 1_700_000_000_000, change, alarm: alarm.clone() };
    Message { notices: vec![notice(7, AlarmChange::Cleared), notice(9, AlarmChange::Raised)], missed: false }
}

#[test]
fn a_mail_says_what_is_wrong_and_what_to_do_over_tls() {
    let relay = Relay::start(true);
    let home = tempfile::tempdir().unwrap();
    let couriers = relay.couriers(home.path(), PASSWORD);
    couriers.check(&to()).unwrap();
    couriers.deliver(Uuid::from_u128(1), &to(), &message("host host2 does not answer")).unwrap();
    let mail = relay.got.recv().unwrap();
    assert!(mail.is_encrypted);
    assert_eq!((mail.user.as_str(), mail.to.len()), (USER, 1));
    assert!(mail.to[0].contains("<ops@example.com>"));
    for says in [
        "Subject: [Strongroom] critical: host host2 does not answer (and 1 more)",
        "From: strongroom@example.com",
        "over: host host2 does not answer",
        "Next: see to it that hostd runs there",
        "2023-11-14T22:13:20Z, event 9",
    ] {
        assert!(mail.text.contains(says), "{says} is not in\n{}", mail.text);
    }
}

#[test]
fn a_text_that_would_add_headers_stays_text() {
    let relay = Relay::start(true);
    let home = tempfile::tempdir().unwrap();
    let couriers = relay.couriers(home.path(), PASSWORD);
    let attack = "x\r\nBcc: eve@example.com\r\n\r\n.\r\nMAIL FROM:<eve@example.com>";
    couriers.deliver(Uuid::from_u128(1), &to(), &message(attack)).unwrap();
    let mail = relay.got.recv().unwrap();
    assert_eq!(mail.to.len(), 1);
    assert!(!mail.text.contains("\r\nBcc:") && !mail.text.contains("\r\nMAIL"), "{}", mail.text);
}

#[test]
fn a_relay_without_tls_or_with_another_certificate_gets_neither_password_nor_mail() {
    let (plain, relay, other) = (Relay::start(false), Relay::start(true), Relay::start(true));
    let home = tempfile::tempdir().unwrap();
    let send = |couriers: &Couriers| couriers.deliver(Uuid::from_u128(1), &to(), &message("x"));
    let Undelivered(reason) = send(&plain.couriers(home.path(), PASSWORD)).unwrap_err();
    assert!(reason.to_lowercase().contains("starttls") || reason.contains("TLS"), "{reason}");
    let couriers = relay.couriers(home.path(), PASSWORD);
    std::fs::write(home.path().join("ca.pem"), &other.ca).unwrap();
    let Undelivered(reason) = send(&couriers).unwrap_err();
    assert!(reason.contains("ertificate"), "{reason}");
    assert!(plain.got.try_recv().is_err() && relay.got.try_recv().is_err());
}

#[test]
fn a_wrong_password_and_a_missing_relay_are_told() {
    let relay = Relay::start(true);
    let home = tempfile::tempdir().unwrap();
    let none = Couriers::open(home.path()).unwrap();
    let Undelivered(reason) = none.check(&to()).unwrap_err();
    assert!(reason.contains("strongroom recipient relay"), "{reason}");
    let couriers = relay.couriers(home.path(), "wrong");
    let Undelivered(reason) = couriers.deliver(Uuid::from_u128(1), &to(), &message("x")).unwrap_err();
    assert!(reason.contains("535"), "{reason}");
    assert!(!reason.contains("wrong"), "the password is told: {reason}");
}
