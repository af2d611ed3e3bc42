//! Alarms reach a program outside: a webhook with a certificate of its own gets them, signed, also
//! when the control plane was killed meanwhile.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;
use strongroom_system_tests::{Process, Scratch, Serving};

const VERIFIER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/verify-webhook");
const ARRIVES_WITHIN: Duration = Duration::from_secs(120);

/// An HTTPS server that keeps each request: `N.json` has its headers, `N.body` what was sent. It
/// prints its port.
const RECEIVER: &str = "
import http.server, json, os, ssl, sys
directory = sys.argv[1]
class Receiver(http.server.BaseHTTPRequestHandler):
    number = 0
    def do_POST(self):
        body = self.rfile.read(int(self.headers['content-length']))
        name = f'{directory}/{Receiver.number:03}'
        Receiver.number += 1
        open(name + '.body', 'wb').write(body)
        open(name + '.new', 'w').write(json.dumps({key.lower(): value for key, value in self.headers.items()} | {'path': self.path}))
        os.rename(name + '.new', name + '.json')
        self.send_response(204)
        self.end_headers()
    def log_message(self, *_):
        pass
server = http.server.HTTPServer(('127.0.0.1', 0), Receiver)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(f'{directory}/cert.pem', f'{directory}/key.pem')
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
";

struct Receiver<'test> {
    serving: &'test Serving<'test>,
    directory: PathBuf,
    process: Process,
    port: String,
}

impl<'test> Receiver<'test> {
    fn start(serving: &'test Serving<'test>, scratch: &Scratch) -> Self {
        let directory = scratch.make_directory("receiver");
        let at = directory.display();
        serving.strongroom.run_shell(&format!(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=receiver \
             -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE -keyout {at}/key.pem -out {at}/cert.pem"
        ))
        .success();
        fs::write(directory.join("receiver.py"), RECEIVER).unwrap();
        let script = format!("exec /usr/bin/python3 {at}/receiver.py {at} >{at}/port");
        let process = serving.strongroom.start_shell("receiver", &script);
        let until = Instant::now() + ARRIVES_WITHIN;
        let port = loop {
            match fs::read_to_string(directory.join("port")) {
                Ok(port) if port.ends_with('\n') => break port.trim().to_owned(),
                _ => assert!(Instant::now() < until, "the receiver does not listen"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        Self { serving, directory, process, port }
    }

    /// Waits for a message of which this is so, and verifies it by another implementation.
    fn wait_for(&self, awaited: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + ARRIVES_WITHIN;
        loop {
            for number in 0.. {
                let file = |end: &str| self.directory.join(format!("{number:03}.{end}"));
                let Ok(headers) = fs::read(file("json")) else { break };
                let headers: Value = serde_json::from_slice(&headers).unwrap();
                let body: Value = serde_json::from_slice(&fs::read(file("body")).unwrap()).unwrap();
                if is_it(&body) {
                    self.verify(&headers, &file("body"));
                    return body;
                }
            }
            assert!(Instant::now() < until, "no message {awaited}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn verify(&self, headers: &Value, body: &std::path::Path) {
        let of = |name: &str| headers[name].as_str().unwrap();
        assert_eq!(of("path"), "/hook/geheim");
        let secret = self.directory.join("secret");
        let arguments = |body: &std::path::Path| {
            format!(
                "/usr/bin/python3 {VERIFIER} --secret-file {} --id {} --timestamp {} --signature {} --max-age 0 {}",
                secret.display(),
                of("webhook-id"),
                of("webhook-timestamp"),
                of("webhook-signature"),
                body.display()
            )
        };
        let told = self.serving.strongroom.run_shell(&arguments(body)).success();
        assert!(told.starts_with("genuine"), "{told}");
        let other = self.directory.join("other");
        fs::write(&other, [fs::read(body).unwrap(), b" ".to_vec()].concat()).unwrap();
        let told = self.serving.strongroom.run_shell(&arguments(&other)).failure();
        assert!(told.contains("the signature is not of this message"), "{told}");
    }
}

fn has(body: &Value, change: &str, kind: &str) -> bool {
    let notices = body["data"]["notices"].as_array().unwrap();
    notices.iter().any(|notice| notice["change"] == change && notice["alarm"]["kind"] == kind)
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_webhook_is_told_of_an_alarm_and_of_its_end_though_the_control_plane_is_killed() {
    let scratch = Scratch::new();
    let serving = Serving::start_logging(&scratch, "debug");
    let receiver = Receiver::start(&serving, &scratch);
    let at = receiver.directory.display();
    fs::write(receiver.directory.join("url"), format!("https://127.0.0.1:{}/hook/geheim\n", receiver.port))
        .unwrap();

    // Without the receiver's own authority nothing is sent.
    serving.runs(&format!("recipient add stranger --webhook-file {at}/url"));
    let told = serving.is_refused("recipient test stranger");
    assert!(told.contains("recipient stranger did not take the message"), "{told}");
    serving.runs("recipient remove stranger");

    let made = serving.json(&format!(
        "recipient add desk --webhook-file {at}/url --authorities {at}/cert.pem --severity critical"
    ));
    fs::write(receiver.directory.join("secret"), made["secret"].as_str().unwrap()).unwrap();
    serving.runs("recipient test desk");
    receiver.wait_for("of the test", |body| body["type"] == "test");

    serving.runs("datastore add ds ds");
    let (there, away) = (scratch.path("ds"), scratch.path("away"));
    fs::rename(&there, &away).unwrap();
    receiver.wait_for("of the lost datastore", |body| has(body, "raised", "datastore_unavailable"));
    rustix::process::kill_process(serving.process(&["--role", "control"]), rustix::process::Signal::KILL)
        .unwrap();
    fs::rename(&away, &there).unwrap();
    receiver.wait_for("of its return", |body| has(body, "cleared", "datastore_unavailable"));

    let listed = serving.runs("recipient list");
    assert!(listed.contains(&format!("https://127.0.0.1:{} ", receiver.port)), "{listed}");
    // A part of the address may be secret, and is in the inventory alone.
    let log = fs::read_to_string(scratch.path("serve.stderr")).unwrap_or_default();
    let shown = serving.runs("recipient list --json") + &serving.runs("access log") + &log;
    assert!(!shown.contains("geheim"), "the address of the webhook is shown");
    serving.runs("recipient remove desk");
    receiver.process.kill();
    assert!(serving.runs("recipient list").contains("alarms are sent to nobody"));
}

#[test]
fn mail_takes_a_relay_and_none_goes_to_other_machines_in_the_clear() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let told = serving.is_refused("recipient add ops --mail ops@example.com");
    assert!(
        told.contains("no mail relay is set up") && told.contains("strongroom recipient relay"),
        "{told}"
    );
    serving.runs("recipient relay --set smtp+plain://127.0.0.1:1 --from strongroom@example.com");
    serving.runs("recipient add ops --mail ops@example.com");
    let told = serving.is_refused("recipient test ops");
    assert!(told.contains("recipient ops did not take the message"), "{told}");
    let told = serving.answer("recipient relay --set smtp+plain://10.0.0.1 --from a@b.example").unwrap_err();
    assert!(told.to_string().contains("another machine"), "{told}");
}
