//! Validity periods and limits, each with its reason.

use time::Duration;

/// How far before the present a certificate begins, so that a client whose clock is a little behind
/// can use it at once.
pub const BACKDATED: Duration = Duration::minutes(5);

/// Validity of the authority's own certificate: as long as machines stay in service. It is rolled
/// over earlier.
pub const CA_VALIDITY: Duration = Duration::days(10 * 365);
/// How long the old authority is trusted beside the new one by default: the default life of a
/// client's certificate, so that each client renews once meanwhile.
pub const CA_OVERLAP: Duration = CLIENT_VALIDITY;
/// The shortest overlap: that of a token, so that each token's fingerprint stays good for the
/// token's life.
pub const CA_OVERLAP_MIN: Duration = TOKEN_VALIDITY_MAX;
/// Most authorities trusted at a time: the present one and the one before. No chain that every TLS
/// library follows could lead a client from the one before that.
pub const CA_GENERATIONS_MAX: usize = 2;

/// Default validity of the server's certificate: short, because this process renews it by itself.
pub const SERVER_VALIDITY: Duration = Duration::days(30);
/// The longest: the maximum that browsers and TLS libraries accept (CA/Browser Forum baseline
/// requirements until 2026).
pub const SERVER_VALIDITY_MAX: Duration = Duration::days(397);

/// Default validity of a client's certificate: one renewal each quarter, which may be weeks late.
pub const CLIENT_VALIDITY: Duration = Duration::days(90);
/// The longest: for KMIP clients whose certificates people renew by hand, such as a vCenter.
pub const CLIENT_VALIDITY_MAX: Duration = Duration::days(825);
/// The shortest validity of any certificate: below it renewal would come too late.
pub const VALIDITY_MIN: Duration = Duration::hours(1);

/// Default grace period of the old certificate after a renewal: time for every part of the client
/// to switch to the new one.
pub const RENEWAL_GRACE: Duration = Duration::days(1);
/// Most valid certificates that one client may have: a renewal every day, none of them used, for a
/// week. A client that renews in a loop stops here.
pub const CLIENT_CERTIFICATES_MAX: usize = 8;

/// Default validity of an enrolment token: it is used at once or not at all.
pub const TOKEN_VALIDITY: Duration = Duration::hours(1);
/// The longest: a host that is shipped and set up within the week.
pub const TOKEN_VALIDITY_MAX: Duration = Duration::days(7);
/// How long an expired token is remembered, so that a late user learns that it has expired.
pub const EXPIRED_TOKEN_KEPT: Duration = Duration::days(1);
/// Most open tokens at a time: more hosts than are ever set up at once, and a bound on the store's
/// size.
pub const TOKENS_MAX: usize = 4096;

/// Most names and addresses of a server.
pub const SERVER_NAMES_MAX: usize = 64;
/// Longest signing request, in bytes of DER or PEM: one for RSA with 8192 bits and a dozen names is
/// a third of it.
pub const SIGNING_REQUEST_MAX_BYTES: usize = 8 * 1024;
/// Longest certificate that is pinned, in bytes of DER.
pub const PINNED_CERTIFICATE_MAX_BYTES: usize = 16 * 1024;
/// Most pinned certificates: a person maintains each.
pub const PINS_MAX: usize = 1024;
/// Most certificates whose verified identity is kept in memory, so that a request on an open
/// connection does not verify a chain again.
pub const IDENTIFIED_MAX: usize = 4096;
