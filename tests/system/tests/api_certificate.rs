//! A certificate of the API from an authority that is not ours: requested, issued by openssl,
//! installed while the control plane runs, and seen by curl. What has pinned the API's own goes on.

use std::time::{Duration, Instant};

use strongroom_system_tests::{Scratch, Serving};

const NAME: &str = "strongroom.example.com";
const SERVED_WITHIN: Duration = Duration::from_secs(60);

const ISSUE: &str = r#"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=authority -keyout ca.key -out ca.pem 2>/dev/null
openssl x509 -req -in api.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 20 -copy_extensions copy -out api.pem 2>/dev/null
cat api.pem ca.pem > api-chain.pem
"#;

#[test]
fn a_certificate_of_an_authority_is_installed_while_the_api_runs() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    serving.runs("vm list");
    let before = serving.runs("certificate show");
    assert!(before.contains("none is installed"), "{before}");
    assert!(
        serving
            .is_refused("certificate install home/control/api.crt")
            .contains("no certificate was requested")
    );
    assert!(serving.is_refused("certificate request 10.0.0.5").contains("is no name in DNS"));
    serving.runs(&format!("certificate request {NAME} > api.csr"));
    serving.strongroom.peer("sh", &["-euc", ISSUE]);
    assert!(serving.is_refused("certificate install api.pem").contains("append them"));
    let installed = serving.runs("certificate install api-chain.pem");
    assert!(installed.contains(&format!("the certificate for {NAME} is installed until")), "{installed}");
    assert!(serving.runs("certificate show").contains("CN=authority"));
    let url = serving.api_url();
    let port = url.rsplit(':').next().unwrap();
    let resolve = format!("{NAME}:{port}:127.0.0.1");
    let healthy = format!("https://{NAME}:{port}/healthz");
    let curl = format!("curl --silent --cacert ca.pem --resolve {resolve} {healthy} || true");
    let begun = Instant::now();
    while serving.strongroom.peer("sh", &["-c", &curl]).is_empty() {
        assert!(begun.elapsed() < SERVED_WITHIN, "it is not served");
    }
    // The commands on this machine, with the certificate that they have pinned.
    serving.runs("vm list");
    serving.gets("/healthz");
    serving.wait_until_told("event alarms", &format!("the API's certificate (api {NAME}) ends"));
    serving.runs("certificate remove");
    assert!(serving.runs("certificate show").contains("none is installed"));
}
