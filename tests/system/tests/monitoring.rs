//! Prometheus reads the metrics with a token that reads nothing else, every expression of the rules
//! and the dashboard is one that it takes, and its alert is raised with the alarm.
#![cfg(feature = "full")]

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;
use strongroom_system_tests::{CommandLine, Scratch, Serving};

const MONITORING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/monitoring");
const WITHIN: Duration = Duration::from_secs(120);

/// A Prometheus with the job and the rules of the package, but for its paths and its patience.
struct Prometheus<'test> {
    strongroom: &'test CommandLine<'test>,
    url: String,
}

impl Prometheus<'_> {
    fn ask(&self, path: &str, more: &[&str]) -> Value {
        let url = format!("{}{path}", self.url);
        let said = self.strongroom.peer("curl", &[&["-sS", "--get"], more, &[&url]].concat());
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{path}: {error}: {said}"))
    }

    /// The series that an expression gives.
    fn query(&self, expression: &str) -> Vec<Value> {
        let answer = self.ask("/api/v1/query", &["--data-urlencode", &format!("query={expression}")]);
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        answer["data"]["result"].as_array().unwrap().clone()
    }

    fn wait_until(&self, awaited: &str, is_so: impl Fn(&Self) -> bool) {
        let until = Instant::now() + WITHIN;
        while !is_so(self) {
            assert!(Instant::now() < until, "Prometheus never says {awaited}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

fn expressions() -> Vec<String> {
    let dashboard = fs::read(PathBuf::from(MONITORING).join("dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_slice(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let all: Vec<String> = targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect();
    assert!(all.len() > 12, "{all:?}");
    all
}

#[test]
fn prometheus_takes_the_rules_and_the_dashboard_and_raises_the_alert_of_an_alarm() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    serving.runs("datastore add ds ds");
    serving.runs("vm create web1 --memory 64M --disk 8M --net none");
    let token = serving.runs("access token create prometheus --role auditor --valid 1d");
    fs::write(scratch.path("token"), token.trim()).unwrap();
    let job = fs::read_to_string(PathBuf::from(MONITORING).join("prometheus.yml")).unwrap();
    let at = |name: &str| scratch.path(name).display().to_string();
    let job = job
        .replace("/etc/prometheus/strongroom.token", &at("token"))
        .replace("/etc/prometheus/strongroom.crt", &at("home/control/api.crt"))
        .replace("127.0.0.1:5690", serving.api_url().strip_prefix("https://").unwrap())
        .replace("/usr/share/strongroom/monitoring", MONITORING);
    let config = format!("global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n{job}");
    fs::write(scratch.path("prometheus.yml"), config).unwrap();
    serving.strongroom.peer("promtool", &["check", "rules", &format!("{MONITORING}/rules.yml")]);

    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let script = format!(
        "exec prometheus --config.file={} --storage.tsdb.path={} --web.listen-address=127.0.0.1:{port} --log.level=warn",
        at("prometheus.yml"),
        at("tsdb")
    );
    let process = serving.strongroom.start_shell("prometheus", &script);
    let prometheus = Prometheus { strongroom: &serving.strongroom, url: format!("http://127.0.0.1:{port}") };
    let until = Instant::now() + WITHIN;
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < until, "Prometheus does not listen");
        std::thread::sleep(Duration::from_millis(100));
    }

    prometheus.wait_until("that the control plane answers", |it| {
        it.query("up{job=\"strongroom\"}").iter().any(|series| series["value"][1] == "1")
    });
    for expression in expressions() {
        prometheus.query(&expression);
    }
    for (expression, value) in [
        ("strongroom_vms", "1"),
        ("sum(strongroom_host_up)", "1"),
        ("count(strongroom_datastore_bytes > 0)", "1"),
    ] {
        prometheus.wait_until(expression, |it| {
            it.query(expression).iter().any(|series| series["value"][1] == value)
        });
    }
    fs::rename(scratch.path("ds"), scratch.path("away")).unwrap();
    prometheus.wait_until("that there is an alert", |it| {
        let answer = it.ask("/api/v1/alerts", &[]);
        let alerts = answer["data"]["alerts"].as_array().unwrap();
        alerts.iter().any(|alert| {
            alert["labels"]["kind"] == "datastore_unavailable" && alert["labels"]["severity"] == "critical"
        })
    });
    // The token reads numbers, and changes nothing.
    let told = serving.is_refused(&format!("vm stop web1 --api-token-file {}", at("token")));
    assert!(told.contains("do not permit this"), "{told}");
    process.kill();
}
