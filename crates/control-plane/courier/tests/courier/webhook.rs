//! Webhooks against a real HTTPS server: what arrives is signed, and what goes wrong is told
//! without the webhook's secret address.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use aws_lc_rs::hmac;
use base64ct::{Base64, Encoding};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use strongroom_api::alarm::{Alarm, AlarmKind, Severity};
use strongroom_api::recipient::{AlarmChange, Destination, Message, Notice};
use strongroom_api::{ObjectKind, ObjectRef};
use strongroom_control::courier::Courier;
use strongroom_courier::Couriers;
use uuid::Uuid;

use crate::tls::{Tls, listen};

const RECIPIENT: Uuid = Uuid::from_u128(7);

/// What a server got: the request's head and its body.
struct Got {
    head: String,
    body: Vec<u8>,
}

impl Got {
    fn header(&self, name: &str) -> &str {
        let line = self.head.lines().find(|line| line.to_lowercase().starts_with(&format!("{name}:")));
        line.unwrap_or_else(|| panic!("no {name} in {}", self.head)).split_once(':').unwrap().1.trim()
    }
}

/// An HTTPS server that gives this answer to each request.
struct Server {
    port: u16,
    ca: String,
    got: Receiver<Got>,
}

impl Server {
    fn start(answer: &'static str) -> Self {
        let Tls { config, pem: ca } = Tls::new();
        let (sent, got) = channel();
        let port = listen(move |stream| {
            if let Some(request) = serve(stream, &config, answer) {
                let _ = sent.send(request);
            }
        });
        Self { port, ca, got }
    }

    fn destination(&self) -> Destination {
        let url = format!("https://127.0.0.1:{}/hook/geheim?token=geheim", self.port);
        serde_json::from_value(serde_json::json!({ "type": "webhook", "url": url, "authorities": self.ca }))
            .unwrap()
    }
}

fn serve(stream: TcpStream, config: &Arc<ServerConfig>, answer: &str) -> Option<Got> {
    let mut tls = StreamOwned::new(ServerConnection::new(Arc::clone(config)).unwrap(), stream);
    let mut all = Vec::new();
    let mut byte = [0];
    while !all.ends_with(b"\r\n\r\n") {
        tls.read_exact(&mut byte).ok()?;
        all.push(byte[0]);
    }
    let head = String::from_utf8(all).unwrap();
    let mut got = Got { head, body: Vec::new() };
    got.body = vec![0; got.header("content-length").parse().unwrap()];
    tls.read_exact(&mut got.body).ok()?;
    tls.write_all(answer.as_bytes()).ok()?;
    tls.conn.send_close_notify();
    let _ = tls.flush();
    Some(got)
}

fn message() -> Message {
    let notice = |event| Notice {
        event,
        at_unix_ms: 1_700_000_000_000,
        change: AlarmChange::Raised,
        alarm: Alarm {
            kind: AlarmKind::VmCrashed,
            severity: Severity::Critical,
            object: ObjectRef { kind: ObjectKind::Vm, id: None, name: "web1".to_owned() },
            message: "VM web1 is off and should run".to_owned(),
            next_step: "look into the reason".to_owned(),
            since_unix_ms: 1_700_000_000_000,
        },
    };
    Message { notices: vec![notice(41), notice(43)], missed: false }
}

#[test]
fn a_message_is_signed_with_the_secret_that_its_recipient_has() {
    let server = Server::start("HTTP/1.1 204 No Content\r\n\r\n");
    let home = tempfile::tempdir().unwrap();
    let couriers = Couriers::open(home.path()).unwrap();
    couriers.deliver(RECIPIENT, &server.destination(), &message()).unwrap();
    let got = server.got.recv().unwrap();
    assert!(got.head.starts_with("POST /hook/geheim?token=geheim HTTP/1.1\r\n"), "{}", got.head);
    let secret = couriers.secret(RECIPIENT);
    let secret = Base64::decode_vec(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let (id, at) = (got.header("webhook-id"), got.header("webhook-timestamp"));
    let signed = [format!("{id}.{at}.").as_bytes(), &got.body].concat();
    let signature = Base64::decode_vec(got.header("webhook-signature").strip_prefix("v1,").unwrap()).unwrap();
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, &secret), &signed, &signature).unwrap();
    let body: serde_json::Value = serde_json::from_slice(&got.body).unwrap();
    assert_eq!(body["type"], "alarms");
    assert_eq!(body["data"]["notices"][1]["event"], 43);
    assert_eq!(body["data"]["notices"][0]["alarm"]["message"], "VM web1 is off and should run");
    // The same changes have the same id, so a receiver knows a message that comes again.
    couriers.deliver(RECIPIENT, &server.destination(), &message()).unwrap();
    assert_eq!(server.got.recv().unwrap().header("webhook-id"), id);
}

#[test]
fn an_answer_that_is_no_success_is_told_without_the_address() {
    for (answer, says) in [
        ("HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n", "status 500"),
        (
            "HTTP/1.1 302 Found\r\nlocation: https://127.0.0.1:1/geheim\r\ncontent-length: 0\r\n\r\n",
            "status 302",
        ),
        ("nonsense\r\n\r\n", "https://127.0.0.1"),
    ] {
        let server = Server::start(answer);
        let home = tempfile::tempdir().unwrap();
        let couriers = Couriers::open(home.path()).unwrap();
        let error = couriers.deliver(RECIPIENT, &server.destination(), &message()).unwrap_err().to_string();
        assert!(error.contains(says) && !error.contains("geheim"), "{error}");
    }
}

#[test]
fn a_server_under_another_authority_gets_nothing() {
    let (server, other) = (Server::start("HTTP/1.1 204 No\r\n\r\n"), Server::start(""));
    let home = tempfile::tempdir().unwrap();
    let couriers = Couriers::open(home.path()).unwrap();
    let Destination::Webhook { url, .. } = server.destination() else { unreachable!() };
    let Destination::Webhook { authorities, .. } = other.destination() else { unreachable!() };
    let to = Destination::Webhook { url: url.clone(), authorities };
    let error = couriers.deliver(RECIPIENT, &to, &message()).unwrap_err().to_string();
    assert!(error.contains("certificate") && !error.contains("geheim"), "{error}");
    // Nor one that nobody vouches for.
    let to = Destination::Webhook { url, authorities: None };
    let error = couriers.deliver(RECIPIENT, &to, &message()).unwrap_err().to_string();
    assert!(!error.contains("geheim"), "{error}");
    assert!(server.got.try_recv().is_err(), "a message went to a server that nobody knows");
}

#[test]
fn authorities_that_are_none_are_refused_before_anything_is_sent() {
    let home = tempfile::tempdir().unwrap();
    let couriers = Couriers::open(home.path()).unwrap();
    let to = serde_json::json!({ "type": "webhook", "url": "https://x/", "authorities": "no PEM" });
    let error = couriers.check(&serde_json::from_value(to).unwrap()).unwrap_err().to_string();
    assert!(error.contains("there is no certificate in it"), "{error}");
}
