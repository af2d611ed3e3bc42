//! Limits of one request. The limits of a VM are in `strongroom_vm::limits`.

use strongroom_vm::limits::SNAPSHOTS_MAX;

/// Longest description, in bytes.
pub const DESCRIPTION_MAX_BYTES: usize = 1024;

/// Longest notes about a VM, in characters: some screens of text.
pub const NOTES_CHARACTERS_MAX: usize = 4096;

/// Longest key of a tag, in bytes: that of a name.
pub const TAG_KEY_BYTES_MAX: usize = 63;

/// Longest value of a tag, in bytes.
pub const TAG_VALUE_BYTES_MAX: usize = 63;

/// Most tags of a VM. Lists look at all of them.
pub const TAGS_MAX: usize = 32;

/// Longest list of tags that VMs are looked for with, in characters: eight of the longest tags.
pub const TAGS_WANTED_CHARACTERS_MAX: usize = 8 * (TAG_KEY_BYTES_MAX + 1 + TAG_VALUE_BYTES_MAX + 1);

/// Longest list of ids that VMs are asked for with, in characters: a hundred, with commas.
pub const VM_IDS_CHARACTERS_MAX: usize = 100 * (36 + 1);

/// Highest disk latency that a policy may set, in milliseconds. Guests give up a request after a
/// minute.
pub const DISK_LATENCY_P99_MAX_MS: u32 = 60_000;
/// The most losses that a policy may demand to be outlived.
pub const LOSSES_SURVIVED_MAX: u8 = 16;

/// The hours of which a datastore's capacity is kept: a week, in which a person sees what a night's
/// jobs take.
pub const CAPACITY_HOURS_KEPT: usize = 7 * 24;
/// The days of which it is kept: three years, the time for which disks are bought. Their record has
/// at most a third of the bytes of a value of the store.
pub const CAPACITY_DAYS_KEPT: usize = 3 * 366;

/// Most entries of one page of a list.
pub const PAGE_MAX: u32 = 1000;

/// Entries in a page if the caller sets no limit.
pub const PAGE_DEFAULT: u32 = 100;

/// Longest cursor, in bytes: a name and an id.
pub const CURSOR_MAX_BYTES: usize = 512;

/// Greatest event number: the greatest that a client with signed 64-bit integers can send.
pub const EVENT_NUMBER_MAX: u64 = i64::MAX as u64;

/// Longest time that a graceful stop may wait for the guest, in seconds.
pub const STOP_TIMEOUT_MAX_S: u32 = 3600;

/// Time that a graceful stop waits for the guest by default, in seconds.
pub const STOP_TIMEOUT_DEFAULT_S: u32 = 60;

/// Shortest and longest time for which the guest of a VM that moves while it runs may stand still,
/// in milliseconds. Guests give up a disk's request after a minute.
pub const MOVE_PAUSE_MIN_MS: u32 = 10;
/// See [`MOVE_PAUSE_MIN_MS`].
pub const MOVE_PAUSE_MAX_MS: u32 = 60_000;
/// That time by default, in milliseconds.
pub const MOVE_PAUSE_DEFAULT_MS: u32 = 300;

/// The most channels over which the memory of a VM that moves while it runs passes.
pub const MOVE_CHANNELS_MAX: u8 = 8;

/// Shortest time from one scheduled snapshot to the next, in seconds. Each snapshot makes the guest
/// wait, and the layers of those that are deleted have to be merged until then.
pub const SNAPSHOT_PERIOD_MIN_S: u32 = 300;

/// Longest time from one scheduled snapshot to the next, in seconds: 366 days.
pub const SNAPSHOT_PERIOD_MAX_S: u32 = 366 * 86_400;

/// The unit of that time, in seconds. Snapshots are named by the minute.
pub const SNAPSHOT_PERIOD_UNIT_S: u32 = 60;

/// Most rules for the snapshots of a VM: more than anybody can tell apart.
pub const SNAPSHOT_RULES_MAX: usize = 8;

/// How many of a VM's snapshots no schedule takes: one that is made before the oldest is deleted,
/// and four that people make.
pub const SNAPSHOTS_UNSCHEDULED: usize = 5;

/// Most snapshots that the rules of a VM keep together.
pub const SCHEDULED_SNAPSHOTS_MAX: usize = SNAPSHOTS_MAX - SNAPSHOTS_UNSCHEDULED;

/// Shortest cryptoperiod of a VM's data keys, in seconds: a renewal writes all of its data.
pub const CRYPTOPERIOD_MIN_S: u32 = 86_400;

/// Longest cryptoperiod of a VM's data keys, in seconds: ten years.
pub const CRYPTOPERIOD_MAX_S: u32 = 3660 * 86_400;

/// The unit of that period, in seconds: a window for renewals comes once a day.
pub const CRYPTOPERIOD_UNIT_S: u32 = 86_400;

/// Size of a chunk in maps of volumes if a request names none, in bytes.
pub const CHUNK_DEFAULT_BYTES: u64 = 64 * 1024;

/// The fewest bytes of a user's password: as of the key server's passphrases.
pub const PASSWORD_BYTES_MIN: usize = 12;

/// The most bytes of a user's password.
pub const PASSWORD_BYTES_MAX: usize = 1024;

/// The digits of a code of the second factor.
pub const CODE_DIGITS: usize = 6;

/// Longest request body, in bytes. The largest VM that the limits allow takes about 20 KiB.
pub const BODY_MAX_BYTES: usize = 256 * 1024;

/// Longest `Idempotency-Key`, in bytes.
pub const IDEMPOTENCY_KEY_MAX_BYTES: usize = 128;

/// The most changes of volumes in one request: each is a task, and a transaction.
pub const VOLUME_CHANGES_MAX: usize = 64;

/// The longest reference to an object, in characters: a VM's name or id, and that of one of its
/// disks.
pub const REFERENCE_CHARACTERS_MAX: usize = 128;

/// The most VMs or processors of a folder's quota.
pub const QUOTA_COUNT_MAX: u64 = 1_000_000;

/// The most memory or disk space of a folder's quota, in bytes: 1 EiB.
pub const QUOTA_BYTES_MAX: u64 = 1 << 60;

/// Shortest time that entries of the access log are kept, in seconds: 30 days.
pub const ACCESS_LOG_KEEP_MIN_S: u64 = 30 * 86_400;

/// Longest time that entries of the access log are kept, in seconds: ten years.
pub const ACCESS_LOG_KEEP_MAX_S: u64 = 3660 * 86_400;

/// How long entries of the access log are kept by default, in seconds: twelve months.
pub const ACCESS_LOG_KEEP_DEFAULT_S: u64 = 366 * 86_400;

/// Least room of the access log, in bytes.
pub const ACCESS_LOG_ROOM_MIN_BYTES: u64 = 1 << 20;

/// Most room of the access log, in bytes.
pub const ACCESS_LOG_ROOM_MAX_BYTES: u64 = 64 << 30;

/// Room of the access log by default, in bytes: 10,000 VMs, two requests a day for each, for twelve
/// months, at 500 bytes an entry.
pub const ACCESS_LOG_ROOM_DEFAULT_BYTES: u64 = 4 << 30;

/// Most kept heads of the access log in one verification.
pub const ACCESS_LOG_HEADS_MAX: usize = 64;

/// Longest address of a webhook, in bytes.
pub const WEBHOOK_URL_BYTES_MAX: usize = 2048;

/// Longest certificates of a webhook's authorities, in bytes of PEM.
pub const WEBHOOK_AUTHORITY_BYTES_MAX: usize = 64 * 1024;

/// Longest mail address, in bytes (RFC 5321, 4.5.3.1.3).
pub const MAIL_ADDRESS_BYTES_MAX: usize = 254;

/// Most recipients of alarms.
pub const RECIPIENTS_MAX: usize = 32;

/// Most changes of alarms in one message.
pub const NOTICES_MAX: usize = 100;

/// Longest address and port of a host, in bytes: an IPv6 address with a zone.
pub const SOCKET_ADDRESS_BYTES_MAX: usize = 64;

/// Shortest validity of a host's token, in seconds: time to carry it somewhere.
pub const HOST_TOKEN_MIN_S: u32 = 60;

/// Longest validity of a host's token, in seconds: seven days, as of any token of the key server.
pub const HOST_TOKEN_MAX_S: u32 = 7 * 86_400;

/// Validity of a host's token by default, in seconds.
pub const HOST_TOKEN_DEFAULT_S: u32 = 3600;

/// Most identity providers.
pub const IDENTITY_PROVIDERS_MAX: usize = 16;

/// Longest address of an identity provider, or of a page that it sends browsers back to, in bytes.
pub const PROVIDER_URL_BYTES_MAX: usize = 1024;

/// Longest client id, scope, claim, or name of a group at an identity provider, in bytes.
pub const PROVIDER_TEXT_BYTES_MAX: usize = 256;

/// Longest name of somebody who asks, in bytes: of an identity provider, a colon, and the name
/// there.
pub const ACTOR_NAME_BYTES_MAX: usize = 63 + 1 + PROVIDER_TEXT_BYTES_MAX;

/// Longest bearer token, in bytes: more than twice that of a token that is made here.
pub const BEARER_TOKEN_BYTES_MAX: usize = 256;

/// The longest certificate of a client's key, in bytes of PEM.
pub const CLIENT_CERTIFICATE_BYTES_MAX: usize = 16 * 1024;
/// Longest client secret at an identity provider, in bytes.
pub const CLIENT_SECRET_BYTES_MAX: usize = 1024;

/// Most scopes that an identity provider is asked for.
pub const PROVIDER_SCOPES_MAX: usize = 16;

/// Most pages that an identity provider sends browsers back to.
pub const PROVIDER_PAGES_MAX: usize = 4;

/// Shortest session that an identity provider gives, in seconds.
pub const PROVIDER_SESSION_MIN_S: u32 = 5 * 60;

/// Longest session that an identity provider gives, in seconds: a working day, as of a password.
pub const PROVIDER_SESSION_MAX_S: u32 = 12 * 3600;

/// Length of a session that an identity provider gives, in seconds, by default.
pub const PROVIDER_SESSION_DEFAULT_S: u32 = 3600;

/// Longest code, state or other text that a browser carries back from an identity provider, in
/// bytes.
pub const PROVIDER_ANSWER_BYTES_MAX: usize = 8 * 1024;

/// Most emergency credentials.
pub const EMERGENCY_CREDENTIALS_MAX: usize = 16;

/// Longest emergency credential as a person types it, in bytes.
pub const EMERGENCY_SECRET_BYTES_MAX: usize = 128;

/// Longest reason for an emergency sign-in, in bytes.
pub const EMERGENCY_REASON_BYTES_MAX: usize = 500;
