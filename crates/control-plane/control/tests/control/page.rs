//! The page's files: where they are, what browsers are told about them, and that nothing else is.

use strongroom_page::assets;

use crate::support::client::{Answer, Client};
use crate::support::server::Server;

/// What a browser sends with a navigation.
const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

fn stranger(server: &Server) -> Client {
    let mut client = server.client();
    client.token.clear();
    client
}

fn browse(client: &mut Client, method: &str, path: &str) -> Answer {
    client.ask(method, path, &[("accept", BROWSER)], None)
}

fn is_index(answer: &Answer) -> bool {
    answer.status == 200 && answer.header("content-type").starts_with("text/html")
}

/// The directives of the answer's policy.
fn policy(answer: &Answer) -> Vec<String> {
    answer.header("content-security-policy").split(';').map(|part| part.trim().to_owned()).collect()
}

fn is_out_of_frames(answer: &Answer) {
    assert_eq!(answer.header("x-frame-options"), "DENY");
    let policy = policy(answer);
    for directive in ["default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"]
    {
        assert!(policy.iter().any(|one| one == directive), "{directive}: {}", answer.head);
    }
    assert!(!policy.iter().any(|one| one.contains("unsafe") || one.contains("http")), "{policy:?}");
    assert_eq!(answer.header("x-content-type-options"), "nosniff");
    assert_eq!(answer.header("referrer-policy"), "no-referrer");
    assert_eq!(answer.header("cross-origin-resource-policy"), "same-origin");
    let cross_origin = answer.head.to_ascii_lowercase();
    assert!(!cross_origin.contains("access-control-"), "{}", answer.head);
}

#[test]
fn each_screens_address_is_the_page_for_browsers_and_nothing_for_programs() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut client = stranger(&server);
    for path in ["/", "/vms", "/vms/web1?tab=disks", "/sign-in/corp?code=c&state=s", "/v1x", "/x/v1/vms"] {
        let answer = browse(&mut client, "GET", path);
        assert!(is_index(&answer), "{path}: {} {}", answer.head, answer.body);
        assert_eq!(answer.header("cache-control"), "no-cache");
        assert!(answer.headers("etag").is_empty() && answer.headers("set-cookie").is_empty());
        assert_eq!(answer.header("cross-origin-opener-policy"), "same-origin");
        is_out_of_frames(&answer);
        let head = browse(&mut client, "HEAD", path);
        assert!(is_index(&head) && head.body.is_empty(), "{path}");
    }
    assert!(is_index(&client.get("/")), "also for who takes anything");
    // What is no screen: the paths of programs, other methods, and who takes no HTML.
    for path in
        ["/v1/nothing", "/v1", "/relay", "/relay/x", "/openapi.json/x", "/assets", "/metrics/x", "/healthz/x"]
    {
        let answer = browse(&mut client, "GET", path);
        assert_eq!((answer.status, answer.code().as_str()), (404, "no_such_path"), "{path}");
        is_out_of_frames(&answer);
        assert_eq!(answer.header("cache-control"), "no-store");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"] {
        assert_eq!(browse(&mut client, method, "/vms").code(), "no_such_path", "{method}");
        assert_eq!(browse(&mut client, method, "/").code(), "no_such_path", "{method}");
    }
    assert_eq!(client.get("/vms").code(), "no_such_path");
    assert_eq!(client.ask("GET", "/vms", &[("accept", "text/html;q=0")], None).code(), "no_such_path");
    // An operation's refusals are no pages, whoever asks.
    let refused = browse(&mut client, "GET", "/v1/vms");
    assert_eq!((refused.status, refused.code().as_str()), (401, "unauthorized"));
    is_out_of_frames(&refused);
    assert_eq!(refused.header("cache-control"), "no-store");
}

#[test]
fn each_answer_of_the_page_has_a_nonce_of_its_own_and_runs_no_other_style_or_script() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut client = stranger(&server);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..4 {
        let answer = browse(&mut client, "GET", "/");
        let policy = policy(&answer);
        let style = policy.iter().find_map(|one| one.strip_prefix("style-src 'self' 'nonce-")).unwrap();
        let nonce = style.strip_suffix('\'').unwrap().to_owned();
        assert!(
            nonce.len() == 32 && answer.body.contains(&format!("content=\"{nonce}\"")),
            "{}",
            answer.body
        );
        assert!(!answer.body.contains("@STYLE_NONCE@"));
        assert!(policy.iter().any(|one| one == "script-src 'self'"));
        assert!(policy.iter().any(|one| one == "require-trusted-types-for 'script'"));
        assert!(seen.insert(nonce), "a nonce came twice");
        // What a client sends does not come back: it would be in the text that browsers trust.
        let asked = [("accept", BROWSER), ("if-none-match", "*"), ("x-nonce", "stolen")];
        let again = client.ask("GET", "/%22%3e%3cscript%3e?x=%3cscript%3e", &asked, None);
        assert!(is_index(&again) && !again.body.contains("%3c") && !again.body.contains("stolen"));
    }
}

#[test]
fn no_path_leads_out_of_the_assets() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut client = stranger(&server);
    let some = assets().first().map_or("index-DiwrgTda.js", |asset| asset.name);
    for path in [
        "/assets/",
        "/assets/.",
        "/assets/..",
        "/assets/../index.html",
        "/assets/../../../../etc/passwd",
        "/assets/%2e%2e/index.html",
        "/assets/%2e%2e%2findex.html",
        "/assets/..%2f..%2f..%2fetc%2fpasswd",
        "/assets/..%5cindex.html",
        "/assets/%252e%252e/index.html",
        "/assets//etc/passwd",
        "/assets/%00",
        "/assets/index.html",
        &format!("/assets/./{some}"),
        &format!("/assets//{some}"),
        &format!("/assets/x/../{some}"),
        &format!("/assets/{some}/"),
        &format!("/assets/{some}%00"),
        &format!("/assets/{some}.gz"),
        &format!("/assets/%{:02x}{}", some.as_bytes()[0], &some[1..]),
        &format!("//assets/{some}"),
        &format!("/ASSETS/{some}x"),
    ] {
        let answer = client.get(path);
        assert_eq!((answer.status, answer.code().as_str()), (404, "no_such_path"), "{path}");
        is_out_of_frames(&answer);
        assert_eq!(answer.header("cache-control"), "no-store", "{path}");
    }
    assert_eq!(browse(&mut client, "POST", &format!("/assets/{some}")).status, 404);
}

#[test]
fn assets_are_kept_for_a_year_and_are_what_they_are_however_they_travel() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut client = stranger(&server);
    // What the index names is there.
    let index = browse(&mut client, "GET", "/").body;
    for part in index.split("\"/assets/").skip(1) {
        let name = part.split('"').next().unwrap();
        assert!(assets().iter().any(|asset| asset.name == name), "{name}");
    }
    for asset in assets() {
        let path = format!("/assets/{}", asset.name);
        let plain = client.get(&path);
        assert_eq!((plain.status, plain.header("content-type")), (200, asset.content_type));
        assert_eq!(plain.header("cache-control"), "public, max-age=31536000, immutable");
        assert_eq!(plain.header("content-length"), asset.plain.len().to_string());
        assert_eq!(plain.body.as_bytes(), String::from_utf8_lossy(asset.plain).as_bytes());
        is_out_of_frames(&plain);
        let packed = client.ask("GET", &path, &[("accept-encoding", "br, gzip;q=0.5")], None);
        let length = asset.gzip.unwrap_or(asset.plain).len();
        assert_eq!(packed.header("content-length"), length.to_string());
        assert_eq!(packed.headers("content-encoding").contains(&"gzip"), asset.gzip.is_some());
        let refused = client.ask("GET", &path, &[("accept-encoding", "gzip;q=0, identity")], None);
        assert!(refused.headers("content-encoding").is_empty());
    }
}
