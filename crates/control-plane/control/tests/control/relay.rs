//! Guest data for browsers: their connections go to the relay, for tickets of their callers alone.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::{HeaderName, HeaderValue};
use tokio_tungstenite::tungstenite::{Error, HandshakeError, Message, WebSocket, client as websocket};

use crate::support::Site;
use crate::support::browser::{Browser, OWN_PAGE};
use crate::support::client::{Client, Tls};
use crate::support::server::Server;

/// A site with a running VM, and the socket of its host.
struct Console {
    server: Server,
    host: UnixListener,
    _directory: tempfile::TempDir,
}

impl Console {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::with_hosts(directory.path(), Site::new());
        let socket = directory.path().join("guest.sock");
        let host = UnixListener::bind(&socket).unwrap();
        server.site.host.lock().guest_socket = Some(socket);
        let mut admin = server.client();
        let added = admin.post("/v1/datastores", &json!({ "name": "ds1", "path": "/srv/ds1" }));
        admin.done(&added);
        let wish = json!({ "name": "web1", "memory_bytes": 1 << 30, "disks": [{ "size_bytes": 1 << 20 }] });
        let made = admin.post("/v1/vms", &wish);
        admin.done(&made);
        Self { server, host, _directory: directory }
    }

    fn browser(&self, token: &str) -> Browser {
        let mut browser = Browser::of(&self.server);
        let signed_in = browser.post("/v1/page-sessions", &json!({ "by": "token", "token": token }));
        assert_eq!(signed_in.status, 201, "{}", signed_in.body);
        browser
    }

    /// The next client of the host, which shows its ticket and is welcome.
    fn takes_client(&self) -> UnixStream {
        let (stream, _) = self.host.accept().unwrap();
        let mut hello = String::new();
        BufReader::new(&stream).read_line(&mut hello).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&hello).unwrap()["ticket"], TICKET);
        (&stream).write_all(b"{\"console\":{\"writer\":true}}\n").unwrap();
        stream
    }
}

const TICKET: &str = "07070707070707070707070707070707";

fn ticket_for(browser: &mut Browser, vm: &str, use_: &Value) -> String {
    let made = browser.post(&format!("/v1/vms/{vm}/tickets"), use_);
    assert_eq!(made.status, 201, "{}", made.body);
    made.json()["ticket"].as_str().unwrap().to_owned()
}

/// Asks for a WebSocket, as a browser does for the page, with other headers in the place of its
/// own. The result is the status of a refusal otherwise.
fn asks(
    client: &Client,
    cookie: &str,
    ticket: &str,
    others: &[(&str, Option<&str>)],
) -> Result<WebSocket<Tls>, u16> {
    let mut request = "wss://localhost/relay".into_client_request().unwrap();
    let headers = request.headers_mut();
    let protocols = format!("strongroom-guest, strongroom-ticket.{ticket}");
    let own = OWN_PAGE.map(|(name, value)| (name, Some(value)));
    let all =
        [own.as_slice(), &[("sec-websocket-protocol", Some(&*protocols)), ("cookie", Some(cookie))], others];
    for (name, value) in all.concat() {
        let name = HeaderName::try_from(name).unwrap();
        match value {
            Some(value) => drop(headers.insert(name, HeaderValue::from_str(value).unwrap())),
            None => drop(headers.remove(name)),
        }
    }
    match websocket::client(request, client.connect()) {
        Ok((socket, answer)) => {
            assert_eq!(answer.headers()["sec-websocket-protocol"], "strongroom-guest");
            Ok(socket)
        }
        Err(HandshakeError::Failure(Error::Http(answer))) => Err(answer.status().as_u16()),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_console_reaches_the_page_of_who_may_and_once_for_a_ticket() {
    let console = Console::start();
    let mut browser = console.browser(&console.server.client().token);
    let ticket = ticket_for(&mut browser, "web1", &json!({ "operation": "console" }));
    let cookie = browser.cookie();
    let mut socket = asks(&browser.client, &cookie, &ticket, &[]).unwrap();
    let mut guest = console.takes_client();
    let welcome: Value = serde_json::from_str(socket.read().unwrap().to_text().unwrap()).unwrap();
    assert_eq!(welcome, json!({ "welcome": { "console": { "writer": true } } }));
    guest.write_all(b"login: ").unwrap();
    assert_eq!(socket.read().unwrap().into_data(), "login: ");
    socket.send(Message::binary(b"root\n".to_vec())).unwrap();
    let mut typed = [0; 5];
    guest.read_exact(&mut typed).unwrap();
    assert_eq!(&typed, b"root\n");
    // The control plane serves on beside it, and may end.
    assert_eq!(browser.get("/v1/vms/web1").status, 200);
    assert_eq!(asks(&browser.client, &cookie, &ticket, &[]).map(drop), Err(404), "it was taken");
    socket.close(None).unwrap();
    assert_eq!(guest.read(&mut typed).unwrap(), 0);

    // What is open ends with the session.
    let ticket = ticket_for(&mut browser, "web1", &json!({ "operation": "console" }));
    let mut socket = asks(&browser.client, &cookie, &ticket, &[]).unwrap();
    let mut guest = console.takes_client();
    assert!(socket.read().unwrap().is_text());
    assert_eq!(browser.delete("/v1/page-sessions").json(), json!({ "sessions": 1 }));
    guest.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    assert_eq!(guest.read(&mut typed).unwrap(), 0);
    assert!(socket.read().is_err());
}

#[test]
fn nobody_else_gets_a_console_through_a_browser() {
    let console = Console::start();
    let mut admin = console.server.client();
    let first = admin.token.clone();
    let mut browser = console.browser(&first);
    let cookie = browser.cookie();
    let ticket = ticket_for(&mut browser, "web1", &json!({ "operation": "console" }));
    let refused = |cookie: &str, ticket: &str, others: &[(&str, Option<&str>)]| {
        asks(&browser.client, cookie, ticket, others).map(drop).unwrap_err()
    };
    // Another page, also one of a neighbour at another port; a request that says nothing of it.
    for others in [
        [("origin", Some("https://evil.example"))].as_slice(),
        &[("origin", Some("https://localhost:8443"))],
        &[("origin", Some("null"))],
        &[("sec-fetch-site", Some("same-site"))],
        &[("sec-fetch-site", Some("cross-site"))],
        &[("sec-fetch-site", Some("none"))],
    ] {
        assert_eq!(refused(&cookie, &ticket, others), 401, "{others:?}");
    }
    assert_eq!(refused(&cookie, &ticket, &[("origin", None)]), 400);
    // No session of a browser: a token is none, and goes to the host directly.
    let bearer = format!("Bearer {first}");
    let none = [("cookie", None), ("authorization", Some(&*bearer))];
    assert_eq!(refused("", &ticket, &none), 401);
    assert_eq!(refused("__Host-strongroom=guessed", &ticket, &[]), 401);
    // No ticket, one that was made up, one of another caller.
    assert_eq!(refused(&cookie, "", &[]), 404);
    assert_eq!(refused(&cookie, "ff", &[]), 404);
    assert_eq!(refused(&cookie, &ticket, &[("sec-websocket-protocol", Some("strongroom-guest"))]), 400);
    let soon = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 3600;
    let token = admin.post(
        "/v1/tokens",
        &json!({ "name": "eves", "role": "administrator", "scope": { "type": "site" }, "expires_unix_seconds": soon }),
    );
    assert_eq!(token.status, 201, "{}", token.body);
    let eve = console.browser(token.json()["token"].as_str().unwrap());
    assert_eq!(refused(&eve.cookie(), &ticket, &[]), 404, "it is of another caller");
    // The session has ended.
    assert_eq!(browser.delete("/v1/page-sessions/current").status, 200);
    assert_eq!(asks(&browser.client, &cookie, &ticket, &[]).map(drop), Err(401));
}

#[test]
fn a_policy_refuses_consoles_to_browsers_alone() {
    let console = Console::start();
    let mut admin = console.server.client();
    let policy = json!({ "name": "direct", "rules": { "browser_console_denied": true } });
    let made = admin.post("/v1/policies", &policy);
    admin.done(&made);
    assert_eq!(admin.get("/v1/vms/web1").json()["browser_console_denied"], Value::Null);
    let wish = json!({ "name": "web2", "policy": "direct", "memory_bytes": 1 << 30, "disks": [{ "size_bytes": 1 << 20 }] });
    let made = admin.post("/v1/vms", &wish);
    admin.done(&made);
    assert_eq!(admin.get("/v1/vms/web2").json()["browser_console_denied"], true);
    let mut browser = console.browser(&admin.token);
    let upload = json!({ "operation": "upload", "disk": "disk0" });
    for wanted in [json!({ "operation": "vnc" }), upload] {
        let ticket = ticket_for(&mut browser, "web2", &wanted);
        assert_eq!(asks(&browser.client, &browser.cookie(), &ticket, &[]).map(drop), Err(403), "{wanted}");
    }
    let log = admin.get("/v1/access/log?limit=5").json();
    assert!(
        log.to_string()
            .contains("policy direct refuses VM web2's console and screen, and its uploads, to browsers"),
        "{log}"
    );
}
