//! Sessions of browsers: how they begin and end, and the ways of others to use or make one.

use std::time::{SystemTime, UNIX_EPOCH};

use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use strongroom_api::OPERATIONS;
use strongroom_api::browser::BearerToken;
use strongroom_api::guard::Guard;
use strongroom_control::engine::SigningIn;
use strongroom_control::engine::holders::{Shown, holder};
use strongroom_control::passwords::code_at;

use crate::support::Site;
use crate::support::browser::{Browser, OWN_PAGE, PAGE};
use crate::support::client::{Answer, Client};
use crate::support::server::Server;
use crate::support::told::Listener;

const PASSWORD: &str = "correct horse battery";
const ATTRIBUTES: &str = "; Path=/; Secure; HttpOnly; SameSite=Strict";

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn site() -> Value {
    json!({ "type": "site" })
}

fn from_base32(text: &str) -> Vec<u8> {
    let letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let bits: String = text.chars().map(|one| format!("{:05b}", letters.find(one).unwrap())).collect();
    (0..bits.len() / 8).map(|at| u8::from_str_radix(&bits[at * 8..at * 8 + 8], 2).unwrap()).collect()
}

/// Makes a user with a role. Returns the secret of its second factor.
fn make_user(admin: &mut Client, name: &str, role: &str) -> Vec<u8> {
    let made = admin.post("/v1/users", &json!({ "name": name, "password": PASSWORD }));
    assert_eq!(made.status, 201, "{}", made.body);
    let granted = admin.post("/v1/grants", &json!({ "user": name, "role": role, "scope": site() }));
    assert_eq!(granted.status, 201, "{}", granted.body);
    from_base32(made.json()["totp_secret"].as_str().unwrap())
}

/// The code of a step behind now: each counts once.
fn code(totp: &[u8], steps_ahead: u64) -> String {
    code_at(totp, now() + 30 * steps_ahead)
}

fn by_password(user: &str, code: &str) -> Value {
    json!({ "by": "password", "user": user, "password": PASSWORD, "code": code })
}

fn by_token(token: &str) -> Value {
    json!({ "by": "token", "token": token })
}

fn make_token(admin: &mut Client, name: &str, role: &str) -> String {
    let wish = json!({ "name": name, "role": role, "scope": site(), "expires_unix_seconds": now() + 3600 });
    let made = admin.post("/v1/tokens", &wish);
    assert_eq!(made.status, 201, "{}", made.body);
    made.json()["token"].as_str().unwrap().to_owned()
}

/// A browser that has signed in.
fn signed_in(server: &Server, wish: &Value) -> Browser {
    let mut browser = Browser::of(server);
    let signed = browser.post("/v1/page-sessions", wish);
    assert_eq!(signed.status, 201, "{}", signed.body);
    browser
}

/// A browser that has signed in by the first token.
fn administrator(server: &Server) -> Browser {
    signed_in(server, &by_token(&server.client().token))
}

/// What the access log has of a caller: kinds, operations, messages.
fn on_record(admin: &mut Client, by: &str) -> Vec<(String, String, String)> {
    let log = admin.get(&format!("/v1/access/log?by={by}&limit=1000")).json();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let entries = log["items"].as_array().unwrap().iter();
    entries.map(|entry| (text(&entry["kind"]), text(&entry["operation"]), text(&entry["message"]))).collect()
}

fn refused(answer: &Answer) {
    assert_eq!((answer.status, answer.code().as_str()), (401, "unauthorized"), "{}", answer.body);
}

/// As the answer to everybody says.
fn is_signed_in(answer: &Answer) -> bool {
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["signed_in"].as_bool().unwrap()
}

#[test]
fn everybody_learns_whether_they_are_signed_in_and_no_page_of_others_does() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    let token = make_token(&mut admin, "program", "auditor");
    const WAYS: &str = "/v1/sign-in-ways";
    let mut stranger = Browser::of(&server);
    assert!(!is_signed_in(&stranger.get(WAYS)));
    stranger.cookies.insert("__Host-strongroom".to_owned(), "x".repeat(43));
    assert!(!is_signed_in(&stranger.get(WAYS)), "of no session");
    let mut browser = signed_in(&server, &by_token(&token));
    assert!(is_signed_in(&browser.get(WAYS)));
    let before = on_record(&mut admin, "program");
    for foreign in [
        [("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")],
        [("origin", "https://localhost:8443"), ("sec-fetch-site", "same-site")],
        [("origin", "https://localhost"), ("sec-fetch-site", "none")],
    ] {
        assert!(!is_signed_in(&browser.with("GET", WAYS, &foreign, None)), "{foreign:?}");
    }
    assert_eq!(on_record(&mut admin, "program"), before, "nobody was refused anything");
    // A program with a token is, too; its cookie is not its token.
    let mut program = server.client();
    program.token = browser.secret();
    assert!(!is_signed_in(&program.get(WAYS)));
    program.token = token;
    assert!(is_signed_in(&program.get(WAYS)));
    assert_eq!(admin.ask("DELETE", "/v1/tokens/program", &[], None).status, 200);
    assert!(!is_signed_in(&program.get(WAYS)) && !is_signed_in(&browser.get(WAYS)));
}

#[test]
fn a_browser_signs_in_and_out_and_its_secret_is_in_a_cookie_alone() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    let totp = make_user(&mut admin, "ada", "operator");
    let mut browser = Browser::of(&server);
    refused(&browser.get("/v1/me"));
    refused(&browser.post("/v1/page-sessions", &by_password("ada", "000000")));
    let signed = browser.post("/v1/page-sessions", &by_password("ada", &code(&totp, 0)));
    assert_eq!(signed.status, 201, "{}", signed.body);
    let (secret, set) = (browser.secret(), signed.header("set-cookie"));
    assert_eq!(set, format!("__Host-strongroom={secret}{ATTRIBUTES}"), "a session cookie: no end, no domain");
    let body = signed.json();
    let fields: Vec<_> = body.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, ["expires_unix_seconds", "name", "session"], "the secret is not among them");
    let lasts = body["expires_unix_seconds"].as_u64().unwrap() - now();
    assert!((body["name"] == "ada") && lasts <= 12 * 3600, "{body}");
    assert_eq!(browser.get("/v1/me").json()["name"], "ada");
    assert_eq!(browser.post("/v1/folders", &json!({ "name": "x" })).status, 403, "an operator makes none");
    assert_eq!(browser.get("/v1/sessions").json()["items"][0]["id"], body["session"]);
    // Other answers set no cookie.
    assert!(browser.get("/v1/vms").headers("set-cookie").is_empty());

    let out = browser.delete("/v1/page-sessions/current");
    assert_eq!((out.status, out.body.as_str()), (200, "{}"));
    assert_eq!(out.header("set-cookie"), format!("__Host-strongroom={ATTRIBUTES}; Max-Age=0"));
    assert!(browser.cookies.is_empty());
    // A cookie that a thief has kept is over, too.
    browser.cookies.insert("__Host-strongroom".to_owned(), secret.clone());
    refused(&browser.get("/v1/me"));
    let told: Vec<_> = on_record(&mut admin, "ada").into_iter().map(|(kind, by, _)| (kind, by)).collect();
    let told: Vec<_> = told.iter().map(|(kind, by)| (kind.as_str(), by.as_str())).collect();
    assert_eq!(
        told,
        [
            ("sign_in_refused", "page_sign_in"),
            ("signed_in", "page_sign_in"),
            ("refused", "folder_create"),
            ("changed", "page_sign_out")
        ]
    );
    let store = std::fs::read(home.path().join("store.redb")).unwrap();
    assert!(!store.windows(secret.len()).any(|here| here == secret.as_bytes()));
    // A program has no browser's session to end.
    assert_eq!(admin.ask("DELETE", "/v1/page-sessions/current", &[], None).code(), "conflict");
}

/// What a browser sends for pages of others.
fn foreign_requests() -> Vec<(&'static str, Vec<(&'static str, &'static str)>)> {
    vec![
        ("another site", vec![("origin", "https://evil.example"), ("sec-fetch-site", "cross-site"), PAGE]),
        ("an old browser, another site", vec![("origin", "https://evil.example"), PAGE]),
        (
            "another port of this host",
            vec![("origin", "https://localhost:8443"), ("sec-fetch-site", "same-site"), PAGE],
        ),
        ("another port, an old browser", vec![("origin", "https://localhost:8443"), PAGE]),
        ("the host without TLS", vec![("origin", "http://localhost"), PAGE]),
        ("a frame without an origin", vec![("origin", "null"), ("sec-fetch-site", "cross-site"), PAGE]),
        ("no origin", vec![("origin", "null"), PAGE]),
        ("an empty origin", vec![("origin", ""), PAGE]),
        ("a second origin", vec![OWN_PAGE[0], ("origin", "https://evil.example"), OWN_PAGE[1], PAGE]),
        ("an address that was typed", vec![("sec-fetch-site", "none"), PAGE]),
        ("an unknown site", vec![OWN_PAGE[0], ("sec-fetch-site", "Same-Origin"), PAGE]),
        ("two sites", vec![OWN_PAGE[0], OWN_PAGE[1], ("sec-fetch-site", "cross-site"), PAGE]),
        ("a prefix of the origin", vec![("origin", "https://localhost.evil.example"), PAGE]),
    ]
}

#[test]
fn a_cookie_counts_for_this_servers_own_page_alone() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    let mut browser = administrator(&server);
    let made = browser.post("/v1/folders", &json!({ "name": "own" }));
    assert_eq!(made.status, 201, "{}", made.body);
    let wish = json!({ "name": "forged" }).to_string();
    for (what, headers) in foreign_requests() {
        for (method, path, body) in [
            ("POST", "/v1/folders", Some(wish.as_str())),
            ("POST", "/v1/vms/web1/stop", None),
            ("DELETE", "/v1/folders/own", None),
            ("GET", "/v1/vms", None),
            ("GET", "/v1/events/stream", None),
            ("GET", "/metrics", None),
            ("DELETE", "/v1/page-sessions", None),
        ] {
            let answer = browser.with(method, path, &headers, body);
            assert_eq!(answer.status, 401, "{what}: {method} {path}: {}", answer.body);
            assert!(!answer.head.to_ascii_lowercase().contains("access-control"), "{}", answer.head);
        }
    }
    // Forms, and requests of scripts that need not ask first: without the header of the page.
    let own = OWN_PAGE.as_slice();
    for headers in [
        own.to_vec(),
        vec![],
        [own, &[("content-type", "text/plain")]].concat(),
        [own, &[("content-type", "application/x-www-form-urlencoded")]].concat(),
        [own, &[("strongroom-page", "0")]].concat(),
        [own, &[("strongroom-page", "")]].concat(),
        [own, &[PAGE, PAGE]].concat(),
    ] {
        refused(&browser.with("POST", "/v1/folders", &headers, Some(&wish)));
        refused(&browser.with("POST", "/v1/folders", &headers, None));
        refused(&browser.with("DELETE", "/v1/folders/own", &headers, None));
        refused(&browser.with("PATCH", "/v1/folders/own", &headers, Some(r#"{"quota":{}}"#)));
        assert_eq!(browser.with("GET", "/v1/folders", &headers, None).status, 200, "what is read takes none");
    }
    // A browser asks first whether it may send the header: it may not.
    let asks = [
        ("origin", "https://evil.example"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "strongroom-page,content-type"),
    ];
    let asked = browser.with("OPTIONS", "/v1/folders", &asks, None);
    assert!(
        asked.status >= 400 && !asked.head.to_ascii_lowercase().contains("access-control"),
        "{}",
        asked.head
    );
    // Nothing has changed, and the attempts are on record.
    let folders = admin.get("/v1/folders").json();
    assert_eq!((folders["total"].as_u64(), &folders["items"][0]["name"]), (Some(1), &json!("own")));
    assert_eq!(browser.get("/v1/me").status, 200, "the session goes on");
    let log = on_record(&mut admin, "admin");
    let forged = log.iter().filter(|(kind, _, message)| kind == "refused" && message.contains("page"));
    assert_eq!(forged.count(), 20, "as many as are written of one caller in an hour");
    // They do not keep the caller's own refusals out of the log.
    let own_refusal = browser.post("/v1/roles", &json!({ "name": "administrator", "privileges": ["view"] }));
    assert!(own_refusal.status >= 400, "{}", own_refusal.body);
}

#[test]
fn no_other_page_signs_a_browser_in_as_somebody_else() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    let corp = json!({ "name": "corp", "issuer": "https://id.example.com", "client_id": "strongroom",
        "pages": ["https://localhost/sign-in/corp"] });
    assert_eq!(admin.post("/v1/identity-providers", &corp).status, 201);
    let sign_in = by_token(&admin.token).to_string();
    let begin = json!({ "provider": "corp", "redirect": "https://localhost/sign-in/corp" }).to_string();
    let mut victim = Browser::of(&server);
    let mut attempts = foreign_requests();
    attempts.push(("a form", OWN_PAGE.to_vec()));
    attempts.push(("a program", vec![]));
    for (what, headers) in attempts {
        for (path, body) in [("/v1/page-sessions", &sign_in), ("/v1/page-sign-ins", &begin)] {
            let answer = victim.with("POST", path, &headers, Some(body));
            assert_eq!((answer.status, answer.code().as_str()), (403, "forbidden"), "{what}: {path}");
            assert!(answer.headers("set-cookie").is_empty(), "{what}");
        }
    }
    assert_eq!(admin.get("/v1/sessions").json()["total"], 0);
}

#[test]
fn a_key_in_a_browser_counts_for_this_servers_own_page_alone() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap();
    let wish = json!({ "name": "collector", "role": "administrator", "scope": site(),
        "expires_unix_seconds": now() + 3600, "certificate": certificate.pem() });
    assert_eq!(server.client().post("/v1/tokens", &wish).status, 201);
    let mut owner = Client::with_key(server.address(), home.path(), certificate.der(), &key);
    assert_eq!(owner.post("/v1/folders", &json!({ "name": "own" })).status, 201, "a program");
    for (what, headers) in foreign_requests() {
        let answer = owner.ask("DELETE", "/v1/folders/own", &headers, None);
        assert_eq!(answer.status, 401, "{what}: {}", answer.body);
        assert_eq!(owner.ask("GET", "/v1/vms", &headers, None).status, 401, "{what}");
    }
    assert_eq!(owner.ask("GET", "/v1/folders/", &OWN_PAGE, None).status, 404);
    assert_eq!(owner.ask("GET", "/v1/folders", &OWN_PAGE, None).json()["total"], 1);
    // Somebody who has signed in with this browser is who they say, and not the key.
    let mut browser = signed_in(&server, &by_token(&server.client().token));
    browser.client = Client::with_key(server.address(), home.path(), certificate.der(), &key);
    assert_eq!(browser.get("/v1/me").json()["name"], "admin");
    // Their session is over: the key does not step in.
    assert_eq!(server.client().ask("DELETE", "/v1/page-sessions", &[], None).json()["sessions"], 1);
    refused(&browser.get("/v1/me"));
    let twice = format!("{0}; {0}", browser.cookie());
    refused(&owner.ask("GET", "/v1/me", &[("cookie", &twice)], None));
}

#[test]
fn a_cookie_that_was_not_issued_signs_nobody_in() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    let chosen = "strongroom-token-".to_owned() + &"07".repeat(32);
    // The victim's browser has a cookie that somebody else has chosen, and signs in.
    let mut victim = Browser::of(&server);
    victim.cookies.insert("__Host-strongroom".to_owned(), chosen.clone());
    refused(&victim.get("/v1/me"));
    let signed = victim.post("/v1/page-sessions", &by_token(&admin.token));
    assert_eq!(signed.status, 201, "{}", signed.body);
    let first = victim.secret();
    assert_ne!(first, chosen);
    let mut thief = Browser::of(&server);
    thief.cookies.insert("__Host-strongroom".to_owned(), chosen);
    refused(&thief.get("/v1/me"));
    // The session from before a sign-in is over after it, and no secret comes twice.
    assert_eq!(victim.post("/v1/page-sessions", &by_token(&admin.token)).status, 201);
    let second = victim.secret();
    assert_ne!(first, second);
    thief.cookies.insert("__Host-strongroom".to_owned(), first.clone());
    refused(&thief.get("/v1/me"));
    assert_eq!(admin.get("/v1/sessions").json()["total"], 1);
    // A sign-in that fails leaves the session as it is, and its cookie.
    let failed = victim.post("/v1/page-sessions", &by_token("strongroom-token-none"));
    refused(&failed);
    assert!(failed.headers("set-cookie").is_empty());
    assert_eq!(victim.get("/v1/me").status, 200);

    // A cookie is no token, and no token is a cookie.
    let token = admin.token.clone();
    for (what, shown) in [("a cookie", second.clone()), ("with its mark", format!("\u{1}{second}"))] {
        admin.token = shown;
        assert_ne!(admin.get("/v1/me").status, 200, "{what}");
    }
    admin.token = token.clone();
    thief.cookies.insert("__Host-strongroom".to_owned(), token.clone());
    refused(&thief.get("/v1/me"));
    refused(&thief.post("/v1/page-sessions", &by_token(&second)));

    // Of a user, too, whose sessions are all alike.
    let totp = make_user(&mut admin, "ada", "operator");
    let page = signed_in(&server, &by_password("ada", &code(&totp, 0)));
    let sign_in = json!({ "user": "ada", "password": PASSWORD, "code": code(&totp, 1) });
    let command = admin.post("/v1/sessions", &sign_in).json()["token"].as_str().unwrap().to_owned();
    thief.cookies.insert("__Host-strongroom".to_owned(), command.clone());
    refused(&thief.get("/v1/me"));
    admin.token = page.secret();
    refused(&admin.get("/v1/me"));
    admin.token = command;
    assert_eq!(admin.get("/v1/me").json()["name"], "ada");
    admin.token = token;

    // The name counts as it is, once, and beside no token.
    let (own, second) = (OWN_PAGE.to_vec(), second.as_str());
    let with = |cookie: &str| {
        let headers = [own.as_slice(), &[("cookie", cookie)]].concat();
        admin_without_token(&server).ask("GET", "/v1/me", &headers, None).status
    };
    assert_eq!(with(&format!("theme=dark; __Host-strongroom={second}; a=b")), 200);
    for cookie in [
        format!("__host-strongroom={second}"),
        format!("__HOST-strongroom={second}"),
        format!("__Secure-strongroom={second}"),
        format!("strongroom={second}"),
        format!("__Host-strongroom-flow={second}"),
        format!("=__Host-strongroom={second}"),
        format!("__Host-strongroom={second}; __Host-strongroom={second}"),
        format!("__Host-strongroom=evil; __Host-strongroom={second}"),
        format!("__Host-strongroom={second}; x=y; __Host-strongroom="),
        format!("__Host-strongroom=\"{second}\""),
        format!("__Host-strongroom={second}x"),
        format!("__Host-strongroom={}", second.to_ascii_uppercase()),
        "__Host-strongroom=".to_owned(),
    ] {
        assert_eq!(with(&cookie), 401, "{cookie}");
    }
    let cookie = format!("__Host-strongroom={second}");
    let lines = [own.as_slice(), &[("cookie", &cookie), ("cookie", "__Host-strongroom=evil")]].concat();
    refused(&admin_without_token(&server).ask("GET", "/v1/me", &lines, None));
    for authorization in ["Bearer strongroom-token-none", "Bearer ", "Basic YTpi", "Negotiate x"] {
        let beside = [own.as_slice(), &[("cookie", &cookie), ("authorization", authorization)]].concat();
        refused(&admin_without_token(&server).ask("GET", "/v1/me", &beside, None));
    }
    // A token that counts does so beside any cookie, wherever the request comes from: it was sent
    // on purpose.
    let beside =
        [("cookie", "__Host-strongroom=evil; __Host-strongroom=x"), ("sec-fetch-site", "cross-site")];
    assert_eq!(admin.ask("GET", "/v1/me", &beside, None).status, 200);
}

fn admin_without_token(server: &Server) -> Client {
    let mut client = server.client();
    client.token.clear();
    client
}

#[test]
fn a_session_by_a_token_has_its_rights_and_ends_with_it() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    make_user(&mut admin, "ada", "administrator");
    let token = make_token(&mut admin, "console", "auditor");
    let mut browser = signed_in(&server, &by_token(&token));
    assert_eq!(browser.get("/v1/me").json()["name"], "console");
    assert_eq!(browser.get("/v1/access/log/head").status, 200);
    assert_eq!(browser.post("/v1/folders", &json!({ "name": "x" })).status, 403);
    let session = browser.get("/v1/sessions").json();
    assert_eq!((&session["total"], &session["items"][0]["user"]), (&json!(1), &json!("console")));
    // Requests of the browser are on record under the token's name.
    assert!(on_record(&mut admin, "console").iter().any(|(kind, operation, message)| {
        (kind.as_str(), operation.as_str()) == ("signed_in", "page_sign_in")
            && message.contains("by its token")
    }));
    // A stream that is open ends with the token, at once.
    let ends = |browser: &Browser, end: &mut dyn FnMut()| {
        let cookie = format!("cookie: {}\r\nsec-fetch-site: same-origin\r\n", browser.cookie());
        let mut stream = browser.client.open("/v1/events/stream", &cookie);
        assert!(stream.next().unwrap().contains("200 OK"));
        end();
        // Until the connection's end, or its time-out.
        while stream.next().is_some() {}
        assert!(stream.has_ended, "the stream goes on");
    };
    ends(&browser, &mut || {
        assert_eq!(admin.post("/v1/tokens/console/rotate", &json!({})).status, 201);
    });
    refused(&browser.get("/v1/me"));
    let rotated = admin.get("/v1/sessions").json();
    assert_eq!(rotated["total"], 0, "{rotated}");

    let token = make_token(&mut admin, "another", "auditor");
    let mut browser = signed_in(&server, &by_token(&token));
    ends(&browser, &mut || {
        assert_eq!(admin.ask("DELETE", "/v1/tokens/another", &[], None).status, 200);
    });
    refused(&browser.get("/v1/me"));
    refused(&browser.post("/v1/page-sessions", &by_token(&token)));

    // The first token.
    let mut browser = administrator(&server);
    assert_eq!(browser.get("/v1/me").json()["name"], "admin");
    assert_eq!(browser.post("/v1/folders", &json!({ "name": "x" })).status, 201);
    let listed = admin.get("/v1/sessions").json();
    assert_eq!(listed["items"][0]["user"], "admin");
    let id = listed["items"][0]["id"].as_str().unwrap().to_owned();
    ends(&browser, &mut || {
        assert_eq!(admin.ask("DELETE", &format!("/v1/sessions/{id}"), &[], None).status, 200);
    });
    refused(&browser.get("/v1/me"));
    // A new session ends the oldest of the same token.
    let others: Vec<_> = (0..17).map(|_| administrator(&server)).collect();
    assert_eq!(admin.get("/v1/sessions").json()["total"], 16);
    assert_eq!(others.into_iter().next_back().unwrap().get("/v1/me").status, 200);
}

#[test]
fn sessions_of_commands_and_keys_are_no_tokens_to_sign_in_with() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    let totp = make_user(&mut admin, "ada", "operator");
    let sign_in = json!({ "user": "ada", "password": PASSWORD, "code": code(&totp, 0) });
    let signed = admin.post("/v1/sessions", &sign_in);
    let session = signed.json()["token"].as_str().unwrap().to_owned();
    let mut browser = Browser::of(&server);
    for token in [session.as_str(), "strongroom-token-none", "admin", "x"] {
        refused(&browser.post("/v1/page-sessions", &by_token(token)));
    }
    for wish in [
        json!({}),
        json!({ "by": "token" }),
        json!({ "by": "password", "token": admin.token }),
        json!({ "by": "token", "token": "" }),
        json!({ "by": "token", "token": "a b" }),
        json!({ "by": "token", "token": "x".repeat(257) }),
        json!({ "by": "token", "token": admin.token, "name": "admin" }),
        json!({ "by": "key", "token": admin.token }),
    ] {
        let answer = browser.post("/v1/page-sessions", &wish);
        assert_eq!(answer.code(), "malformed", "{wish}: {}", answer.body);
        assert!(!answer.body.contains(&admin.token), "{}", answer.body);
    }
    let refusals = on_record(&mut admin, "?");
    assert_eq!(refusals.len(), 4);
    assert!(
        refusals.iter().all(|(kind, operation, _)| kind == "sign_in_refused" && operation == "page_sign_in")
    );
    // The session of a user ends with the user, or another password.
    let mut ada = signed_in(&server, &by_password("ada", &code(&totp, 1)));
    assert_eq!(ada.get("/v1/me").status, 200);
    assert_eq!(admin.post("/v1/users/ada/password", &json!({ "password": PASSWORD })).status, 200);
    refused(&ada.get("/v1/me"));
    let totp = make_user(&mut admin, "bob", "operator");
    let mut bob = signed_in(&server, &by_password("bob", &code(&totp, 0)));
    assert_eq!(bob.get("/v1/me").status, 200);
    assert_eq!(admin.ask("DELETE", "/v1/users/bob", &[], None).status, 200);
    refused(&bob.get("/v1/me"));
}

#[test]
fn signing_out_everywhere_ends_all_sessions_of_the_caller_and_no_others() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    let totp = make_user(&mut admin, "ada", "operator");
    let other = make_user(&mut admin, "bob", "operator");
    let mut bob = signed_in(&server, &by_password("bob", &code(&other, 0)));
    let mut page = signed_in(&server, &by_password("ada", &code(&totp, 0)));
    let sign_in = json!({ "user": "ada", "password": PASSWORD, "code": code(&totp, 1) });
    let mut command = server.client();
    command.token = admin.post("/v1/sessions", &sign_in).json()["token"].as_str().unwrap().to_owned();
    assert_eq!(command.get("/v1/me").json()["name"], "ada");
    let out = page.delete("/v1/page-sessions");
    assert_eq!((out.status, &out.json()), (200, &json!({ "sessions": 2 })), "{}", out.body);
    assert!(page.cookies.is_empty());
    refused(&page.get("/v1/me"));
    refused(&command.get("/v1/me"));
    assert_eq!(bob.get("/v1/me").status, 200);
    assert!(on_record(&mut admin, "ada").iter().any(|(_, operation, message)| {
        operation == "page_sign_out_everywhere" && message == "ada signed out everywhere"
    }));
    // Of a token: its browsers, and not the token.
    let token = make_token(&mut admin, "console", "operator");
    let mut browsers: Vec<_> = (0..2).map(|_| signed_in(&server, &by_token(&token))).collect();
    let mut first = administrator(&server);
    let mut program = server.client();
    program.token = token;
    assert_eq!(program.ask("DELETE", "/v1/page-sessions", &[], None).json(), json!({ "sessions": 2 }));
    browsers.iter_mut().for_each(|browser| refused(&browser.get("/v1/me")));
    assert_eq!((program.get("/v1/me").status, first.get("/v1/me").status), (200, 200));
    assert_eq!(first.delete("/v1/page-sessions").json(), json!({ "sessions": 1 }));
    assert_eq!(admin.get("/v1/me").status, 200);
}

#[test]
fn a_provider_signs_the_browser_in_that_began_and_no_other() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    let ways = |browser: &mut Browser| browser.client.get("/v1/sign-in-ways").json();
    let mut browser = Browser::of(&server);
    assert_eq!(
        ways(&mut browser),
        json!({ "signed_in": false, "passwords": false, "providers": [], "emergency": false })
    );
    for (name, pages) in [
        ("corp", json!(["https://localhost/sign-in/corp", "https://other.example/sign-in/corp"])),
        ("lab", json!(["https://localhost/sign-in/corp", "https://localhost:5690/sign-in/lab"])),
    ] {
        let wish = json!({ "name": name, "issuer": format!("https://{name}.example.com"),
            "client_id": "strongroom", "pages": pages });
        assert_eq!(admin.post("/v1/identity-providers", &wish).status, 201);
        let group = json!({ "provider": name, "group": "ops" });
        let grant = json!({ "group": group, "role": "operator", "scope": site() });
        assert_eq!(admin.post("/v1/grants", &grant).status, 201);
    }
    make_user(&mut admin, "ada", "operator");
    let known = json!({ "signed_in": false, "passwords": true, "emergency": false, "providers": [
        { "name": "corp", "page": "https://localhost/sign-in/corp" }, { "name": "lab" }] });
    let mut told = ways(&mut browser);
    told["providers"].as_array_mut().unwrap().sort_by_key(|one| one["name"].to_string());
    assert_eq!(told, known, "what strangers are told");

    let page = "https://localhost/sign-in/corp";
    let begin = |browser: &mut Browser| {
        let begun = browser.post("/v1/page-sign-ins", &json!({ "provider": "corp", "redirect": page }));
        assert_eq!(begun.status, 201, "{}", begun.body);
        let flow = browser.cookies["__Host-strongroom-flow"].clone();
        assert_eq!(begun.header("set-cookie"), format!("__Host-strongroom-flow={flow}{ATTRIBUTES}"));
        assert!(!begun.body.contains(&flow) && !flow.is_empty(), "{}", begun.body);
        begun.json()["state"].as_str().unwrap().to_owned()
    };
    let back = |state: &str| json!({ "by": "provider", "state": state, "code": "code" });
    let knows = || server.site.vouching.knows("code", "corp", "4711", "alice", &["ops"]);
    let state = begin(&mut browser);
    knows();
    // Somebody else's browser brings what this one's address had.
    let mut other = Browser::of(&server);
    refused(&other.post("/v1/page-sessions", &back(&state)));
    begin(&mut other);
    refused(&other.post("/v1/page-sessions", &back(&state)));
    // The victim's browser is led to what the attacker brought back.
    let attackers = begin(&mut other);
    let mut victim = Browser::of(&server);
    begin(&mut victim);
    refused(&victim.post("/v1/page-sessions", &back(&attackers)));
    let signed = browser.post("/v1/page-sessions", &back(&state));
    assert_eq!((signed.status, &signed.json()["name"]), (201, &json!("corp:alice")), "{}", signed.body);
    assert_eq!(browser.cookies.keys().collect::<Vec<_>>(), ["__Host-strongroom"], "the flow is over");
    assert_eq!(browser.get("/v1/me").json()["name"], "corp:alice");
    // Once.
    knows();
    refused(&browser.post("/v1/page-sessions", &back(&state)));
    assert_eq!(browser.get("/v1/me").status, 200);
    // All sessions of the same person.
    let again = begin(&mut other);
    knows();
    assert_eq!(other.post("/v1/page-sessions", &back(&again)).status, 201);
    assert_eq!(other.delete("/v1/page-sessions").json(), json!({ "sessions": 2 }));
    refused(&browser.get("/v1/me"));
    // It ends with its provider.
    let state = begin(&mut browser);
    knows();
    assert_eq!(browser.post("/v1/page-sessions", &back(&state)).status, 201);
    assert_eq!(admin.ask("DELETE", "/v1/identity-providers/corp", &[], None).status, 200);
    refused(&browser.get("/v1/me"));
    // A page that nobody has registered.
    let elsewhere = json!({ "provider": "lab", "redirect": "https://evil.example/sign-in/lab" });
    assert_eq!(browser.post("/v1/page-sign-ins", &elsewhere).code(), "invalid");
}

#[test]
fn an_emergency_credential_signs_a_browser_in_once() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    let made = admin.post("/v1/emergency-credentials", &json!({ "name": "envelope1" })).json();
    let mut browser = Browser::of(&server);
    assert_eq!(browser.get("/v1/sign-in-ways").json()["emergency"], true);
    let wish = json!({ "by": "emergency", "secret": made["secret"], "reason": "all others are away" });
    let signed = browser.post("/v1/page-sessions", &wish);
    assert_eq!(signed.status, 201, "{}", signed.body);
    assert_eq!(browser.get("/v1/me").json()["name"], "emergency:envelope1");
    assert_eq!(admin.get("/v1/alarms").json()["items"][0]["kind"], "emergency_access");
    assert_eq!(browser.post("/v1/emergency-credentials", &json!({ "name": "another" })).status, 403);
    refused(&Browser::of(&server).post("/v1/page-sessions", &wish));
    assert_eq!(browser.delete("/v1/page-sessions").json(), json!({ "sessions": 1 }));
    refused(&browser.get("/v1/me"));
}

#[test]
fn a_session_by_a_token_ends_in_time_and_with_its_token() {
    let site = Site::new();
    let control = site.control().unwrap();
    let now = control.now_unix_ms() / 1000;
    let caller = crate::support::caller(1);
    let browser = SigningIn::browser("10.0.0.9".parse().unwrap());
    let begin = |expires_in: u64, name: &str| {
        let wish = json!({ "name": name, "role": "auditor", "scope": { "type": "site" },
            "expires_unix_seconds": now + expires_in });
        let made = control.create_token(&caller, &serde_json::from_value(wish).unwrap()).unwrap();
        let token: BearerToken = made.token.unwrap().expose().parse().unwrap();
        control.sign_in_by_token(&browser, &token).unwrap()
    };
    let counts = |secret: &str, at: u64| {
        holder(&control.inventory.read(), &Shown::cookie(secret), now + at).map(|holder| holder.name)
    };
    let short = begin(600, "short");
    assert_eq!(short.session.expires_unix_seconds, now + 600);
    assert_eq!(counts(short.token.expose(), 599).as_deref(), Some("short"));
    assert_eq!(counts(short.token.expose(), 600), None);
    let long = begin(90 * 86_400, "long");
    assert_eq!(long.session.expires_unix_seconds, now + 12 * 3600);
    assert_eq!(counts(long.token.expose(), 12 * 3600 - 1).as_deref(), Some("long"));
    assert_eq!(counts(long.token.expose(), 12 * 3600), None);
    // What is over, or has lost its token, is removed.
    let gone = begin(600, "gone");
    control.revoke_token(&caller, "gone").unwrap();
    assert_eq!(counts(gone.token.expose(), 0), None);
    assert_eq!(control.inventory.read().token_sessions.len(), 3);
    control.inventory.prune(now * 1000).unwrap();
    assert_eq!(control.inventory.read().token_sessions.len(), 2);
    control.inventory.prune((now + 600) * 1000).unwrap();
    assert_eq!(control.inventory.read().token_sessions.len(), 1);
}

#[test]
fn each_request_has_an_id_and_a_long_cookie_harms_nobody() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut browser = administrator(&server);
    let mut seen = std::collections::BTreeSet::new();
    for (path, status) in [
        ("/", 200),
        ("/v1/me", 200),
        ("/v1/vms/none", 404),
        ("/v1/none", 404),
        ("/assets/x", 404),
        ("/healthz", 200),
    ] {
        let own = [OWN_PAGE.as_slice(), &[("strongroom-request", "0123456789abcdef")]].concat();
        let answer = browser.with("GET", path, &own, None);
        let id = answer.header("strongroom-request").to_owned();
        assert_eq!(answer.status, status, "{path}");
        assert!(id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        if status != 200 {
            assert_eq!(answer.json()["error"]["request"], id.as_str());
        }
        assert!(id != "0123456789abcdef" && seen.insert(id), "{path}");
    }
    let long = format!("a={}; {}", "x".repeat(32 * 1024), browser.cookie());
    let huge = browser.client.ask("GET", "/v1/me", &[("cookie", &long)], None);
    assert!([0, 431].contains(&huge.status), "{}", huge.status);
    let many = "a=b; ".repeat(3000) + &browser.cookie();
    let headers = [OWN_PAGE.as_slice(), &[("cookie", &many)]].concat();
    let answer = Browser::of(&server).client.ask("GET", "/v1/me", &headers, None);
    assert_eq!(answer.status, 200, "within the limit of a head it is a cookie like others");
    assert_eq!(browser.get("/v1/me").status, 200);
}

#[test]
fn asking_whether_something_is_there_takes_what_reading_it_takes() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    let mut operator = server.client();
    operator.token = make_token(&mut admin, "console", "operator");
    for operation in OPERATIONS.iter().filter(|operation| operation.method.as_str() == "GET") {
        if operation.id == "event_stream" {
            continue;
        }
        let path = operation.path.replace(['{', '}'], "");
        let [read, head] = ["GET", "HEAD"].map(|method| operator.ask(method, &path, &[], None));
        assert_eq!((read.status, head.body.as_str()), (head.status, ""), "{}", operation.id);
        let open = operation.guard == Guard::Everyone;
        let stranger = admin_without_token(&server).ask("HEAD", &path, &[], None).status;
        assert_eq!(stranger == 401, !open, "{}", operation.id);
    }
    assert_eq!(operator.ask("HEAD", "/v1/users", &[], None).status, 403);
}

#[test]
fn no_secret_of_a_browsers_sign_in_is_in_an_answer_or_in_the_log() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    let listener = Listener::begin();
    let totp = make_user(&mut admin, "ada", "operator");
    let token = make_token(&mut admin, "console", "operator");
    let corp = json!({ "name": "corp", "issuer": "https://id.example.com", "client_id": "strongroom",
        "pages": ["https://localhost/sign-in/corp"] });
    assert_eq!(admin.post("/v1/identity-providers", &corp).status, 201);
    let grant =
        json!({ "group": { "provider": "corp", "group": "ops" }, "role": "operator", "scope": site() });
    assert_eq!(admin.post("/v1/grants", &grant).status, 201);
    let emergency = admin.post("/v1/emergency-credentials", &json!({ "name": "envelope1" })).json();
    let envelope = emergency["secret"].as_str().unwrap().to_owned();
    let (mut answers, mut secrets) =
        (String::new(), vec![PASSWORD.to_owned(), token.clone(), envelope.clone()]);
    let mut told = |browser: &mut Browser, method: &str, path: &str, body: Option<&Value>| {
        let answer = browser.page(method, path, body);
        answers += &answer.body;
        // Of the head, only the cookie's own line has it.
        answers
            .extend(answer.head.lines().filter(|line| !line.to_ascii_lowercase().starts_with("set-cookie")));
        answer
    };
    let mut browser = Browser::of(&server);
    let begin = json!({ "provider": "corp", "redirect": "https://localhost/sign-in/corp" });
    let begun = told(&mut browser, "POST", "/v1/page-sign-ins", Some(&begin)).json();
    secrets.push(browser.cookies["__Host-strongroom-flow"].clone());
    server.site.vouching.knows("s3cret-code", "corp", "4711", "alice", &["ops"]);
    let code = code(&totp, 0);
    for wish in [
        json!({ "by": "provider", "state": begun["state"], "code": "s3cret-code" }),
        by_password("ada", &code),
        by_token(&token),
        json!({ "by": "emergency", "secret": envelope, "reason": "all others are away" }),
    ] {
        let signed = told(&mut browser, "POST", "/v1/page-sessions", Some(&wish));
        assert_eq!(signed.status, 201, "{}", signed.body);
        secrets.push(browser.secret());
        for path in
            ["/v1/me", "/v1/sessions", "/v1/access", "/v1/access/log", "/v1/events", "/metrics", "/v1/none"]
        {
            told(&mut browser, "GET", path, None);
        }
        // The same once more is refused, or wrong, and is not said either.
        told(&mut Browser::of(&server), "POST", "/v1/page-sessions", Some(&wish));
        told(&mut browser, "POST", "/v1/page-sessions", Some(&json!({ "by": "token", "token": [token] })));
    }
    secrets.push("s3cret-code".to_owned());
    told(&mut browser, "DELETE", "/v1/page-sessions/current", None);
    let heard = listener.heard();
    assert!(heard.contains("a request was refused"), "{heard}");
    for secret in secrets {
        assert!(!answers.contains(&secret), "an answer has {secret}");
        assert!(!heard.contains(&secret), "the log has {secret}");
    }
}
