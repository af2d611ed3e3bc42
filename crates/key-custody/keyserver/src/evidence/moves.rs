//! Moves of volumes between keys, as the audit log has them, and what they say of data keys.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use strongroom_audit::{Noted, Outcome, Record};
use strongroom_types::VolumeId;

use crate::grant::VmId;
use crate::objects::id::ObjectId;

/// The action of its records: the question's name.
pub(crate) const ACTION: &str = "move volumes";

/// Most volumes of one move: with their keys and VM they fit a record.
pub const MOVED_VOLUMES_MAX: usize = 1000;

/// Most keys that one move leaves: the text with their ids fits a record.
pub const LEFT_KEYS_MAX: usize = 16;

/// What a move does to the data keys of its volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataKeys {
    /// All data was rewritten, and is under new ones.
    Renewed,
    /// They were wrapped under the other key.
    Kept,
}

/// A completed move of volumes to another key, as stated by whoever had it made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Move {
    /// The VM that has the volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmId>,
    /// The volumes.
    pub volumes: Vec<VolumeId>,
    /// The keys that they were under; none if they were clear, or under no key of this server.
    pub from: Vec<ObjectId>,
    /// The key that they are under; none if they are clear now, or under no key of this server.
    pub to: Option<ObjectId>,
    /// What became of their data keys.
    pub data_keys: DataKeys,
    /// Whether linked clones may share layers with them, which stay under the former data keys.
    pub is_shared: bool,
    /// What was rewritten, as far as the stating process knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewritten: Option<Rewritten>,
}

/// The layers that a job has rewritten. Their former files were removed. A job that was interrupted
/// knows only what it did since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rewritten {
    /// Layers.
    pub layers: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// The first epoch of the new data keys. All epochs below it are gone from the descriptor.
    /// `None` of a volume that was decrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_epoch: Option<u32>,
    /// Bytes that clear layers had allocated, of a volume that was encrypted. Their files were
    /// removed; whether the medium has discarded the blocks is not known. `None` if linked clones
    /// may keep some of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clear_bytes_freed: Option<u64>,
}

impl Move {
    /// The ids for its record, each once.
    pub(crate) fn about(&self) -> Vec<String> {
        let keys = self.from.iter().chain(&self.to).map(ToString::to_string);
        let others = self.vm.iter().map(ToString::to_string);
        let all = keys.chain(others).chain(self.volumes.iter().map(ToString::to_string));
        let mut seen = BTreeSet::new();
        all.filter(|id| seen.insert(id.clone())).collect()
    }

    /// Its record's fields.
    pub(crate) fn fields(&self) -> BTreeMap<&'static str, String> {
        let from = self.from.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let data_keys = match self.data_keys {
            DataKeys::Renewed => "renewed",
            DataKeys::Kept => "kept",
        };
        let mut fields = BTreeMap::from([
            ("from", from),
            ("to", self.to.map(|key| key.to_string()).unwrap_or_default()),
            ("data_keys", data_keys.to_owned()),
            ("shared", if self.is_shared { "yes" } else { "no" }.to_owned()),
        ]);
        if let Some(Rewritten { layers, bytes, first_epoch, clear_bytes_freed }) = self.rewritten {
            fields.insert("rewritten_layers", layers.to_string());
            fields.insert("rewritten_bytes", bytes.to_string());
            let first_epoch = first_epoch.map(|epoch| ("first_epoch", epoch.to_string()));
            let freed = clear_bytes_freed.map(|bytes| ("clear_bytes_freed", bytes.to_string()));
            fields.extend(first_epoch.into_iter().chain(freed));
        }
        fields
    }
}

/// A move, as far as a record says what became of data keys.
struct Stated<'a> {
    from: Vec<&'a str>,
    is_renewed: bool,
    is_shared: bool,
    /// Its volumes, and the VM that has them.
    others: Vec<&'a str>,
}

impl<'a> Stated<'a> {
    fn of(record: &'a Record) -> Option<Self> {
        if record.action != ACTION || record.outcome != Outcome::Done {
            return None;
        }
        let field = |name: &str| record.fields.get(name).map_or("", String::as_str);
        let from: Vec<&str> = field("from").split_whitespace().collect();
        let is_key = |id: &str| from.contains(&id) || field("to") == id;
        let others = record.objects.iter().map(String::as_str).filter(|id| !is_key(id)).collect();
        Some(Self {
            is_renewed: field("data_keys") == "renewed",
            is_shared: field("shared") != "no",
            from,
            others,
        })
    }
}

/// What became of the data keys that were under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataKeyFate {
    /// No move from the key is on record, or not all records were read.
    NotOnRecord,
    /// Data is still under them: they were wrapped under another key, and never renewed.
    Kept,
    /// Linked clones may have layers under them.
    Shared,
    /// The data of all volumes that left the key, by these records, is under new ones.
    Renewed,
}

/// The same, with the lines of the records that say so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftDataKeys {
    /// What became of them.
    pub fate: DataKeyFate,
    /// The lines of the moves from the key.
    pub sequences: Vec<u64>,
}

/// Moves that are on record, in the order of the log.
#[derive(Debug)]
pub(crate) struct Moves {
    pub events: Vec<Noted>,
    /// From which second on these are all.
    pub since_unix_seconds: i64,
}

impl Moves {
    /// What they say of the data keys that were under a key. Of a key that is older than the first
    /// of them, a move that kept the data keys may be missing.
    pub fn data_keys(&self, key: ObjectId, created_unix_seconds: i64) -> LeftDataKeys {
        let is_complete = created_unix_seconds >= self.since_unix_seconds;
        let key = key.to_string();
        let moves = self.events.iter().filter_map(|event| Some((event.sequence, Stated::of(&event.record)?)));
        let moves: Vec<(u64, Stated<'_>)> = moves.collect();
        let (mut sequences, mut kept, mut is_shared) = (Vec::new(), BTreeSet::new(), false);
        for (sequence, moved) in &moves {
            let leaves_key = moved.from.contains(&key.as_str());
            if leaves_key {
                sequences.push(*sequence);
                is_shared |= moved.is_shared;
            }
            if moved.is_renewed {
                let before = kept.len();
                kept.retain(|id| !moved.others.contains(id));
                is_shared |= moved.is_shared && kept.len() < before;
            } else if leaves_key {
                kept.extend(moved.others.iter().copied());
            }
        }
        let fate = match (sequences.is_empty(), kept.is_empty()) {
            (true, _) => DataKeyFate::NotOnRecord,
            (false, false) => DataKeyFate::Kept,
            (false, true) if is_shared => DataKeyFate::Shared,
            (false, true) if !is_complete => DataKeyFate::NotOnRecord,
            (false, true) => DataKeyFate::Renewed,
        };
        LeftDataKeys { fate, sequences }
    }
}

#[cfg(test)]
mod tests {
    use strongroom_audit::Actor;

    use super::*;

    struct Log(Vec<Noted>);

    /// When the keys were made.
    const CREATED: i64 = 7;

    impl Log {
        fn moved(mut self, from: u8, to: u8, data_keys: DataKeys, volumes: &[u8], is_shared: bool) -> Self {
            let moved = Move {
                vm: Some(VmId::from_bytes([9; 16])),
                volumes: volumes.iter().map(|id| VolumeId::from_bytes([*id; 16])).collect(),
                from: vec![key(from)],
                to: Some(key(to)),
                data_keys,
                is_shared,
                rewritten: None,
            };
            let record = Record::new(Actor::default(), ACTION, Outcome::Done);
            let record = moved.about().into_iter().fold(record, Record::object);
            let record =
                moved.fields().into_iter().fold(record, |record, (name, text)| record.field(name, text));
            let sequence = self.0.len() as u64 + 1;
            self.0.push(Noted { sequence, time: String::new(), record });
            self
        }

        fn fate(&self, of: u8) -> (DataKeyFate, Vec<u64>) {
            let LeftDataKeys { fate, sequences } = self.since(CREATED).data_keys(key(of), CREATED);
            (fate, sequences)
        }

        fn since(&self, since_unix_seconds: i64) -> Moves {
            Moves { events: self.0.clone(), since_unix_seconds }
        }
    }

    fn key(number: u8) -> ObjectId {
        ObjectId::from_bytes([number; 16])
    }

    #[test]
    fn data_keys_that_were_kept_count_until_they_are_renewed() {
        use DataKeys::{Kept, Renewed};
        let log = Log(Vec::new());
        assert_eq!(log.fate(1), (DataKeyFate::NotOnRecord, vec![]));
        let log = log.moved(1, 2, Kept, &[11, 12], false);
        assert_eq!(log.fate(1), (DataKeyFate::Kept, vec![1]));
        assert_eq!(log.fate(2), (DataKeyFate::NotOnRecord, vec![]));
        // One of its two volumes is rewritten, under a third key.
        let log = log.moved(2, 3, Renewed, &[11], false);
        assert_eq!((log.fate(1).0, log.fate(2).0), (DataKeyFate::Kept, DataKeyFate::Renewed));
        let log = log.moved(2, 3, Renewed, &[12], false);
        assert_eq!(log.fate(1), (DataKeyFate::Renewed, vec![1]));
        let log = log.moved(3, 4, Renewed, &[11, 12], true);
        assert_eq!((log.fate(1).0, log.fate(3).0), (DataKeyFate::Renewed, DataKeyFate::Shared));
        // A clone was made between two moves: it has layers under the first key's data keys.
        let later = Log(Vec::new()).moved(1, 2, Kept, &[11], false).moved(2, 3, Renewed, &[11], true);
        assert_eq!(later.fate(1).0, DataKeyFate::Shared);
        // With records missing of the time since the key was made, nothing is known for sure.
        let some = log.since(CREATED + 1);
        assert_eq!(some.data_keys(key(2), CREATED).fate, DataKeyFate::NotOnRecord);
        assert_eq!(some.data_keys(key(2), CREATED + 1).fate, DataKeyFate::Renewed);
    }

    #[test]
    fn only_what_was_done_counts() {
        let mut log = Log(Vec::new()).moved(1, 2, DataKeys::Renewed, &[11], false);
        log.0[0].record.outcome = Outcome::Denied;
        assert_eq!(log.fate(1).0, DataKeyFate::NotOnRecord);
    }
}
