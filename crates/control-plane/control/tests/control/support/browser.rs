//! A browser: it keeps cookies, and says where its requests come from.

use std::collections::BTreeMap;

use serde_json::Value;

use super::client::{Answer, Client};
use super::server::Server;

/// What a browser sends with requests of this server's own page.
pub const OWN_PAGE: [(&str, &str); 2] = [("origin", "https://localhost"), ("sec-fetch-site", "same-origin")];
/// What the page adds.
pub const PAGE: (&str, &str) = ("strongroom-page", "1");

pub struct Browser {
    pub client: Client,
    pub cookies: BTreeMap<String, String>,
}

impl Browser {
    pub fn of(server: &Server) -> Self {
        let mut client = server.client();
        client.token.clear();
        Self { client, cookies: BTreeMap::new() }
    }

    /// The header with its cookies.
    pub fn cookie(&self) -> String {
        let pairs = self.cookies.iter().map(|(name, value)| format!("{name}={value}"));
        pairs.collect::<Vec<_>>().join("; ")
    }

    pub fn secret(&self) -> String {
        self.cookies["__Host-strongroom"].clone()
    }

    /// A request of the page.
    pub fn page(&mut self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let headers = [OWN_PAGE.as_slice(), &[PAGE]].concat();
        let answer = self.with(method, path, &headers, body.map(Value::to_string).as_deref());
        for set in answer.headers("set-cookie") {
            let (name, value) = set.split(';').next().unwrap().split_once('=').unwrap();
            match set.contains("Max-Age=0") {
                true => drop(self.cookies.remove(name)),
                false => drop(self.cookies.insert(name.to_owned(), value.to_owned())),
            }
        }
        answer
    }

    pub fn get(&mut self, path: &str) -> Answer {
        self.page("GET", path, None)
    }

    pub fn post(&mut self, path: &str, body: &Value) -> Answer {
        self.page("POST", path, Some(body))
    }

    pub fn delete(&mut self, path: &str) -> Answer {
        self.page("DELETE", path, None)
    }

    /// A request with its cookies and other headers than the page's.
    pub fn with(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&str>) -> Answer {
        let cookie = self.cookie();
        let mut all = headers.to_vec();
        if !cookie.is_empty() {
            all.push(("cookie", &cookie));
        }
        self.client.ask(method, path, &all, body)
    }
}
