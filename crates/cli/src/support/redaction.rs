//! Names, addresses and paths are replaced by ones that say nothing, the same wherever they are.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

/// The fields whose whole value is a name, or names, with what it is replaced by.
const NAMES: [(&str, &str); 21] = [
    ("name", "name"),
    ("by", "user"),
    ("user", "user"),
    ("host", "host"),
    ("datastore", "datastore"),
    ("policy", "policy"),
    ("folder", "folder"),
    ("network", "network"),
    ("tags", "tag"),
    ("notes", "text"),
    ("description", "text"),
    ("label", "text"),
    ("path", "path"),
    ("directory", "path"),
    ("kernel", "path"),
    ("initrd", "path"),
    ("arguments", "text"),
    ("address", "address"),
    ("from", "address"),
    ("device", "device"),
    ("bridge", "device"),
];

/// Names of the program's own, which say nothing about a site.
const OWN: [&str; 3] = ["control", "api", "serve"];

/// What is replaced by what.
#[derive(Debug, Default)]
pub struct Redaction {
    replaced: BTreeMap<String, String>,
    /// Those that are more than a word, such as paths: the longest first, because one may begin
    /// with another.
    phrases: Vec<(String, String)>,
    counts: BTreeMap<&'static str, usize>,
}

impl Redaction {
    /// The number of different names that it knows.
    pub fn len(&self) -> usize {
        self.replaced.len()
    }

    /// Learns the names in a value.
    pub fn learn(&mut self, value: &Value) {
        self.learn_in(value, "name");
        let phrases = self.replaced.iter().filter(|(name, _)| !name.chars().all(is_part));
        self.phrases = phrases.map(|(name, replaced)| (name.clone(), replaced.clone())).collect();
        self.phrases.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    }

    fn learn_in(&mut self, value: &Value, list: &str) {
        match value {
            Value::Array(all) => all.iter().for_each(|value| self.learn_in(value, list)),
            Value::Object(fields) => {
                for (field, value) in fields {
                    let known = NAMES.iter().find(|(name, _)| name == field);
                    match (known, value) {
                        (Some((_, kind)), Value::String(text)) => {
                            let kind = if *kind == "name" { kind_of(fields.get("kind"), list) } else { kind };
                            self.learn_name(text, kind);
                        }
                        (Some((_, kind)), Value::Array(all)) if all.iter().all(Value::is_string) => {
                            all.iter().filter_map(Value::as_str).for_each(|text| self.learn_name(text, kind));
                        }
                        _ => self.learn_in(value, field),
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn learn_name(&mut self, text: &str, kind: &'static str) {
        if !text.is_empty() && !OWN.contains(&text) && !self.replaced.contains_key(text) {
            let count = self.counts.entry(kind).or_default();
            *count += 1;
            self.replaced.insert(text.to_owned(), format!("{kind}-{count}"));
        }
    }

    /// Replaces what it has learnt, and each address.
    pub fn apply(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.without_names(text),
            Value::Array(all) => all.iter_mut().for_each(|value| self.apply(value)),
            Value::Object(fields) => fields.values_mut().for_each(|value| self.apply(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn without_names(&mut self, text: &str) -> String {
        if let Some(replaced) = self.replaced.get(text) {
            return replaced.clone();
        }
        let mut text = text.to_owned();
        for (name, replaced) in &self.phrases {
            if text.contains(name.as_str()) {
                text = text.replace(name.as_str(), replaced);
            }
        }
        let mut redacted = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let end = rest.find(|letter: char| !is_part(letter)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            redacted.push_str(&self.word(word));
            let gap = after.find(is_part).unwrap_or(after.len());
            redacted.push_str(&after[..gap]);
            rest = &after[gap..];
        }
        redacted
    }

    /// A word, with the punctuation at its end.
    fn word(&mut self, word: &str) -> String {
        if let Some(replaced) = self.replaced.get(word) {
            return replaced.clone();
        }
        let bare = word.trim_end_matches(['.', ':', ',']);
        let is_address = bare.parse::<IpAddr>().is_ok()
            || bare.parse::<SocketAddr>().is_ok()
            || bare
                .rsplit_once(':')
                .is_some_and(|(host, port)| host.contains('.') && port.parse::<u16>().is_ok())
            || bare.contains('@');
        if is_address {
            self.learn_name(bare, "address");
        }
        match self.replaced.get(bare) {
            Some(replaced) => format!("{replaced}{}", &word[bare.len()..]),
            None => word.to_owned(),
        }
    }
}

/// What a `name` is the name of: the kind of the object, or that of the list it is in.
fn kind_of(kind: Option<&Value>, list: &str) -> &'static str {
    const KINDS: [(&str, &str); 16] = [
        ("vm", "vm"),
        ("vms", "vm"),
        ("volume", "volume"),
        ("volumes", "volume"),
        ("datastore", "datastore"),
        ("datastores", "datastore"),
        ("host", "host"),
        ("hosts", "host"),
        ("policies", "policy"),
        ("network", "network"),
        ("networks", "network"),
        ("folders", "folder"),
        ("recipient", "recipient"),
        ("recipients", "recipient"),
        ("key_provider", "key-provider"),
        ("key-providers", "key-provider"),
    ];
    let of = |word: &str| KINDS.iter().find(|(name, _)| *name == word).map(|(_, kind)| *kind);
    kind.and_then(Value::as_str).and_then(of).or_else(|| of(list)).unwrap_or("name")
}

/// Whether a character can be a part of a name or an address.
fn is_part(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "._-@:+%[]".contains(letter)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn redacted(mut value: Value) -> Value {
        let mut redaction = Redaction::default();
        redaction.learn(&value);
        redaction.apply(&mut value);
        value
    }

    #[test]
    fn a_name_is_replaced_by_the_same_wherever_it_is() {
        let bundle = redacted(json!({
            "vms": [{ "name": "payroll", "host": "kiel2", "path": "/srv/geheim/payroll" }],
            "events": { "items": [{
                "message": "VM payroll: payroll/disk0 on host kiel2 at /srv/geheim/payroll is full. payroll.",
                "object": { "kind": "vm", "name": "payroll" },
            }] },
        }));
        assert_eq!(bundle["vms"][0], json!({ "name": "vm-1", "host": "host-1", "path": "path-1" }));
        let event = &bundle["events"]["items"][0];
        assert_eq!(event["message"], "VM vm-1: vm-1/disk0 on host host-1 at path-1 is full. vm-1.");
        assert_eq!(event["object"]["name"], "vm-1");
    }

    #[test]
    fn tags_notes_and_networks_are_names() {
        let bundle = redacted(json!({
            "vms": [{ "name": "payroll", "tags": ["kunde=krause", "lohn"], "notes": "ask krause" }],
            "networks": [{ "name": "vorstand", "vlan": 20, "hosts": [{ "host": "kiel2", "bridge": "brvorstand" }] }],
            "events": { "items": [{
                "message": "host kiel2 has network vorstand on brvorstand",
                "object": { "kind": "network", "name": "vorstand" },
            }] },
        }));
        assert_eq!(bundle["vms"][0]["tags"], json!(["tag-1", "tag-2"]));
        assert_eq!(bundle["events"]["items"][0]["message"], "host host-1 has network network-1 on device-1");
        let text = bundle.to_string();
        for name in ["krause", "lohn", "vorstand", "kiel2"] {
            assert!(!text.contains(name), "{text}");
        }
    }

    #[test]
    fn addresses_are_replaced_in_texts() {
        let bundle = redacted(json!({
            "message": "10.1.2.3:5691 does not answer, nor [fd00::7]:443, hooks.example.com:8443 or ops@example.com",
        }));
        let text = bundle["message"].as_str().unwrap();
        for part in ["10.1.2.3", "fd00", "example", "ops"] {
            assert!(!text.contains(part), "{text}");
        }
        assert!(text.ends_with("address-3 or address-4"), "{text}");
    }

    #[test]
    fn words_of_messages_and_numbers_stay() {
        let text = "3 of 4 disks are at 12:30, since 2026-11-28T18:00:00Z";
        assert_eq!(redacted(json!({ "message": text }))["message"], text);
    }
}
