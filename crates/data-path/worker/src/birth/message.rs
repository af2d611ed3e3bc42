//! The messages and their encoding.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use strongroom_datastore::file::LayerFacts;
use strongroom_types::{KeyEpoch, VolumeSize};
use strongroom_wire::Formats;

use crate::condition::{Condition, is_zero};
use crate::merging::MergeOrder;
use crate::placement::Placement;

/// The current format and the one before. Format 1 is the first; 2 added logs, layers below the
/// top, and reports of a volume's condition.
pub const FORMATS: Formats = Formats { oldest: 1, newest: 2 };

/// A supervisor's orders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Confine yourself and make your threads. Files: the listening socket, then the lease of the
    /// user, the statistics page and the pages of limits, as far as there are any.
    Start(Start),
    /// Take the keys. Each epoch's key follows in a separate packet.
    Keys(Keys),
    /// Serve the volume. Files: those of the top layer's blocks, log, index of the log, tags and
    /// discards, as far as it has them; the same for each layer below; then those of the sessions
    /// to resume.
    Serve {
        /// The top layer.
        layer: LayerFacts,
        /// The layers below it, nearest first.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        lower: Vec<LayerFacts>,
        /// The sessions of a predecessor.
        sessions: Option<Value>,
        /// Milliseconds until it begins to complete the layer below the top: meanwhile other
        /// volumes of the same snapshot change over. Supervisors of the former release send it:
        /// their snapshots are made by a successor of the worker.
        #[serde(default, skip_serializing_if = "is_zero")]
        completes_after_ms: u64,
    },
    /// Serve an empty disk in memory, for tests and benchmarks. Only workers of the same program
    /// know it.
    ServeMemory {
        /// The size that the guest sees.
        size_bytes: VolumeSize,
    },
    /// Serve a volume that is not open yet: clients connect and learn what they need of it, but do
    /// no I/O. `Keys` and `Serve` follow, and the sessions go on over the volume. Only workers of
    /// the same program know it.
    AwaitVolume {
        /// The size that the guest sees.
        size_bytes: VolumeSize,
        /// Whether the volume frees space that the guest discards.
        discards: bool,
    },
    /// Close the volume, and keep the sessions as with `AwaitVolume`. Only workers of the same
    /// program know it.
    Release,
    /// The layer's file has grown: use it, and announce the size to the guest.
    Grow {
        /// The new size that the guest sees.
        size_bytes: VolumeSize,
    },
    /// Merge the layer above the one that was opened to be merged into, beside the clients, or go
    /// on with that in another way. Known to workers of the same program alone.
    Merge(MergeOrder),
    /// Bring nothing from the first-write log to the layer as long as the log has room, or do it
    /// again. Not answered: a worker that hangs must not hold up the change that is prepared. Known
    /// to workers of the same program alone.
    HoldDestaging(bool),
    /// Prepare a new, empty top over the volume's layers, beside the clients. Files: those of the
    /// new top, as with [`Order::Serve`]. The keys of its own epochs follow. This and the orders up
    /// to `WithdrawTop` are known to workers that said so in [`Report::Ready`].
    PrepareTop {
        /// The new top.
        layer: LayerFacts,
        /// Its keys.
        keys: Keys,
    },
    /// Hold clients' requests until `ChangeTop` or `WithdrawTop`, or until the lease is over, and
    /// answer when none is under way.
    Freeze {
        /// The lease in milliseconds, from the receipt of this order on.
        lease_ms: u64,
    },
    /// Serve the held requests, and all others, over the new top.
    ChangeTop {
        /// Milliseconds until it begins to complete the layer below the top.
        completes_after_ms: u64,
    },
    /// Forget the new top, and serve the held requests as before.
    WithdrawTop,
    /// Drain, and hand over your sessions.
    Suspend,
    /// The same, with the indexes of logs. Known to workers of the same program alone.
    HandOver,
    /// Drain, flush, and end. A suspended worker only ends: its sessions belong to the successor.
    End,
}

/// A worker's reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// It is confined and has all its threads.
    Ready {
        /// The program's version.
        program: String,
        /// Whether it can put a new top on the volume while it serves.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        changes_top: bool,
        /// Whether it keeps requests within the limits in its pages.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        keeps_limits: bool,
    },
    /// The keys have arrived, and the ciphers are set up.
    Keyed,
    /// Clients are served.
    Serving,
    /// The guest knows the new size.
    Grown,
    /// The merge goes on as ordered. How far it comes is part of the condition.
    Merging,
    /// The new top can be served from any moment on.
    TopPrepared,
    /// No request is under way, and none begins.
    Frozen,
    /// Clients are served over the new top. Files: those of the former top.
    TopChanged {
        /// The former top.
        former: LayerFacts,
    },
    /// Clients are served as before the new top was prepared.
    TopWithdrawn,
    /// It has drained. Files: those of the layers, as with [`Order::Serve`], then those of the
    /// sessions.
    Suspended {
        /// The top layer.
        layer: LayerFacts,
        /// The layers below it, nearest first.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        lower: Vec<LayerFacts>,
        /// The sessions, if the frontend can hand them over; NBD clients reconnect.
        sessions: Option<Value>,
        /// How much of a layer was merged into the one below it, if a successor can go on from
        /// there.
        #[serde(default, skip_serializing_if = "is_zero")]
        merged_bytes: u64,
    },
    /// The volume is closed, and the sessions are kept.
    Released,
    /// It ends.
    Ended {
        /// The error while it drained and flushed, if there was one.
        failure: Option<String>,
    },
    /// The volume's condition. It is not an answer, and is sent only to a supervisor of format 2 or
    /// later.
    Condition(Condition),
    /// The order was not followed.
    Failed {
        /// Why not.
        reason: String,
    },
}

/// What a worker must know before it is confined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// What clients speak.
    pub frontend: Frontend,
    /// The user and group that it gets, if any.
    pub user: Option<(u32, u32)>,
    /// Its placement, on a machine with several NUMA nodes. A program that does not know this field
    /// ignores it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// The layout of the statistics page, if there is one. A program that does not know the layout
    /// does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<u32>,
    /// The pages of its limits, if there are any. A program that does not know this field limits
    /// nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitPages>,
}

/// The pages in which a supervisor sets limits, and workers record what they have spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitPages {
    /// Their layout. A program that does not know it limits nothing.
    pub layout: u32,
    /// How many there are: the volume's own, and its VM's.
    pub count: usize,
}

/// What clients speak.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Frontend {
    /// NBD.
    Nbd {
        /// The export's name.
        export: String,
        /// TLS, for a TCP socket. The private key follows in a separate packet.
        tls: Option<Tls>,
    },
    /// vhost-user.
    VhostUser {
        /// The disk's serial number that the guest reads.
        serial: String,
        /// The most queues.
        queues_max: u16,
    },
}

/// A server's certificate and the clients that it admits; everything but the private key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tls {
    /// The certificate and its chain up to the root, PEM.
    pub certificates: String,
    /// The certificates of the authorities that sign clients' certificates, PEM.
    pub authorities: String,
    /// The identities that are admitted, as `--authorize` takes them.
    pub admitted: Vec<String>,
}

/// The keys that seal the blocks. An unencrypted volume is stated explicitly, never by omission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keys {
    /// The key of each epoch follows, in this order; the last one seals writes.
    Epochs(Vec<KeyEpoch>),
    /// The same, for the sealed layers of a volume that a person has encrypted: layers below the
    /// top that say so are clear still. Known to workers of the same program alone.
    Encrypting(Vec<KeyEpoch>),
    /// The same, for the sealed layers of a volume that a person has decrypted: the others are
    /// clear, and so is what is written. Known to workers of the same program alone.
    Decrypting(Vec<KeyEpoch>),
    /// A person chose that nothing is encrypted.
    Unencrypted,
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use strongroom_datastore::file::Provisioning;
    use strongroom_wire::{FormatError, encode};

    use super::super::socket::BirthError;
    use super::*;

    fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<(u32, M), BirthError> {
        Ok(FORMATS.decode(bytes)?)
    }

    /// Every message as a program of format 1 writes it. They must stay readable for as long as
    /// [`FORMATS`] begins with 1.
    const ORDERS_1: [&str; 8] = [
        r#"{"format":1,"message":{"start":{"frontend":{"vhost_user":{"serial":"vm1","queues_max":16}},"user":[1879048192,1879048192]}}}"#,
        r#"{"format":1,"message":{"start":{"frontend":{"nbd":{"export":"vm1","tls":{"certificates":"PEM","authorities":"PEM","admitted":["dns:host"]}}},"user":null}}}"#,
        r#"{"format":1,"message":{"keys":{"epochs":[1,2]}}}"#,
        r#"{"format":1,"message":{"keys":"unencrypted"}}"#,
        r#"{"format":1,"message":{"serve":{"layer":{"size_bytes":4608,"provisioning":"thin","read_only":false,"write_epoch":2},"sessions":{"version":1}}}}"#,
        r#"{"format":1,"message":{"grow":{"size_bytes":8192}}}"#,
        r#"{"format":1,"message":"suspend"}"#,
        r#"{"format":1,"message":"end"}"#,
    ];
    const REPORTS_1: [&str; 7] = [
        r#"{"format":1,"message":{"ready":{"program":"0.1.0"}}}"#,
        r#"{"format":1,"message":"keyed"}"#,
        r#"{"format":1,"message":"serving"}"#,
        r#"{"format":1,"message":"grown"}"#,
        r#"{"format":1,"message":{"suspended":{"layer":{"size_bytes":4608,"provisioning":"thick","read_only":true,"write_epoch":1},"sessions":null}}}"#,
        r#"{"format":1,"message":{"ended":{"failure":null}}}"#,
        r#"{"format":1,"message":{"failed":{"reason":"no"}}}"#,
    ];

    #[test]
    fn messages_of_format_1_are_read() {
        let orders: Vec<Order> = ORDERS_1.map(|text| decode(text.as_bytes()).unwrap().1).into();
        let second = KeyEpoch::new(2).unwrap();
        assert!(matches!(&orders[0], Order::Start(Start { user: Some((1_879_048_192, _)), .. })));
        assert_eq!(orders[2], Order::Keys(Keys::Epochs(vec![KeyEpoch::FIRST, second])));
        let Order::Serve { layer, sessions: Some(_), .. } = &orders[4] else { panic!("{:?}", orders[4]) };
        assert_eq!(
            (layer.size_bytes.bytes(), layer.provisioning, layer.write_epoch),
            (4608, Provisioning::Thin, second)
        );
        assert_eq!(orders[7], Order::End);
        let reports: Vec<Report> = REPORTS_1.map(|text| decode(text.as_bytes()).unwrap().1).into();
        assert_eq!(reports[5], Report::Ended { failure: None });
    }

    /// An addition of format 2.
    const SERVE_2: &str = r#"{"format":2,"message":{"serve":{"layer":{"size_bytes":4608,"provisioning":"thin","read_only":false,"write_epoch":2,"log":{"bytes":1048576,"fill_bytes_min":65536}},"sessions":null}}}"#;

    const SERVE_CHAIN_2: &str = r#"{"format":2,"message":{"serve":{"layer":{"size_bytes":8192,"provisioning":"thin","read_only":false,"write_epoch":2,"log":{"bytes":1048576,"fill_bytes_min":65536},"discards":{"volume":"00000000-0000-4000-8000-000000000001","layer":"00000000-0000-4000-8000-000000000002"}},"lower":[{"size_bytes":4608,"provisioning":"thin","read_only":true,"write_epoch":1}],"sessions":null}}}"#;

    /// A snapshot in the serving worker.
    const TOP_2: [&str; 4] = [
        r#"{"format":2,"message":{"prepare_top":{"layer":{"size_bytes":8192,"provisioning":"thin","read_only":false,"write_epoch":2},"keys":{"epochs":[2]}}}}"#,
        r#"{"format":2,"message":{"freeze":{"lease_ms":5000}}}"#,
        r#"{"format":2,"message":{"change_top":{"completes_after_ms":100}}}"#,
        r#"{"format":2,"message":"withdraw_top"}"#,
    ];

    const TOP_REPORTS_2: [&str; 6] = [
        r#"{"format":2,"message":{"ready":{"program":"0.1.0","changes_top":true}}}"#,
        r#"{"format":2,"message":{"ready":{"program":"0.1.0","changes_top":true,"keeps_limits":true}}}"#,
        r#"{"format":2,"message":"top_prepared"}"#,
        r#"{"format":2,"message":"frozen"}"#,
        r#"{"format":2,"message":{"top_changed":{"former":{"size_bytes":4608,"provisioning":"thick","read_only":false,"write_epoch":1}}}}"#,
        r#"{"format":2,"message":"top_withdrawn"}"#,
    ];

    const AWAIT_VOLUME_2: &str =
        r#"{"format":2,"message":{"await_volume":{"size_bytes":8192,"discards":true}}}"#;

    const RELEASE_2: &str = r#"{"format":2,"message":"release"}"#;

    const SERVE_MEMORY_2: &str = r#"{"format":2,"message":{"serve_memory":{"size_bytes":8192}}}"#;

    const CONDITION_2: &str = r#"{"format":2,"message":{"condition":{"state":"parked","parked":{"since_unix_seconds":7,"requests":2,"bytes":8192},"refused_for_room":0,"device_errors":1,"last_device_error":"no"}}}"#;

    /// The condition of a volume whose tags found wrong blocks.
    const CONDITION_OF_TAGS_2: &str = r#"{"format":2,"message":{"condition":{"state":"running","parked":null,"refused_for_room":0,"device_errors":0,"last_device_error":null,"adopted_blocks":3,"wrong_blocks":1}}}"#;

    /// On a machine with several NUMA nodes.
    const START_PLACED_2: &str = r#"{"format":2,"message":{"start":{"frontend":{"vhost_user":{"serial":"vm1","queues_max":16}},"user":null,"placement":{"vm_node":1,"device":{"major":259,"minor":3}}}}}"#;

    /// With the limits of the volume and of its VM.
    const START_LIMITED_2: &str = r#"{"format":2,"message":{"start":{"frontend":{"vhost_user":{"serial":"vm1","queues_max":16}},"user":null,"limits":{"layout":1,"count":2}}}}"#;

    #[test]
    fn messages_are_written_as_they_are_read() {
        let orders_2 = [
            SERVE_2,
            SERVE_CHAIN_2,
            SERVE_MEMORY_2,
            AWAIT_VOLUME_2,
            RELEASE_2,
            START_PLACED_2,
            START_LIMITED_2,
        ];
        for text in ORDERS_1.into_iter().chain(orders_2).chain(TOP_2) {
            let (format, order): (u32, Order) = decode(text.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(encode(format, &order).unwrap()).unwrap(), text);
        }
        for text in REPORTS_1.into_iter().chain([CONDITION_2, CONDITION_OF_TAGS_2]).chain(TOP_REPORTS_2) {
            let (format, report): (u32, Report) = decode(text.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(encode(format, &report).unwrap()).unwrap(), text);
        }
    }

    #[test]
    fn other_formats_are_refused_with_their_number() {
        for (format, text) in [
            (3, r#"{"format":3,"message":{"unheard":1}}"#.to_owned()),
            (0, r#"{"format":0,"message":"end"}"#.to_owned()),
        ] {
            let refused = decode::<Order>(text.as_bytes()).unwrap_err();
            assert!(
                matches!(refused, BirthError::Format(FormatError::Unknown { found, .. }) if found == format),
                "{refused}"
            );
            assert!(refused.to_string().contains(&format!("format {format}")), "{refused}");
        }
        assert!(matches!(decode::<Order>(b"{}"), Err(BirthError::Format(FormatError::Malformed(_)))));
        assert!(matches!(decode::<Order>(b"\xff"), Err(BirthError::Format(FormatError::Malformed(_)))));
    }
}
