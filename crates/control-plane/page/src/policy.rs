//! The headers that go with answers to browsers.

use std::fmt::Write;

/// A text that only one answer has: the style elements that it names are the page's own.
#[derive(Clone, PartialEq, Eq)]
pub struct Nonce(String);

impl Nonce {
    /// Its random bytes: 128 bits, which nobody guesses (Content Security Policy 3, 8.1).
    pub const BYTES: usize = 16;

    /// Of random bytes.
    pub fn of(random: [u8; Self::BYTES]) -> Self {
        let mut text = String::with_capacity(2 * Self::BYTES);
        for byte in random {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        Self(text)
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Nonce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Nonce(..)")
    }
}

/// The policy of answers that are no page: what they contain is not run, loaded or framed, whatever
/// a browser takes it for.
pub const API_POLICY: &str =
    "default-src 'none'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'";

/// The other headers of every answer, of the page and of the API: it is what it says it is, no page
/// frames it, and no page of another origin gets it, not even as an image.
pub const EVERY_ANSWER: [(&str, &str); 4] = [
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
];

/// The other headers of the page.
///
/// There is no `Strict-Transport-Security`: with it, a browser that knows the certificate only
/// because its user has accepted it would refuse the server for as long as the header says.
pub const EVERY_PAGE: [(&str, &str); 2] = [
    ("cross-origin-opener-policy", "same-origin"),
    (
        "permissions-policy",
        "accelerometer=(), autoplay=(), camera=(), display-capture=(), geolocation=(), gyroscope=(), hid=(), \
         magnetometer=(), microphone=(), midi=(), payment=(), publickey-credentials-get=(), \
         screen-wake-lock=(), serial=(), usb=(), xr-spatial-tracking=()",
    ),
];

/// The policy of the page's own answers. The nonce is that of `index.html`; assets have none.
pub fn page_policy(nonce: Option<&Nonce>) -> String {
    let style = nonce.map(|nonce| format!(" 'nonce-{}'", nonce.as_str())).unwrap_or_default();
    format!(
        "default-src 'none'; script-src 'self'; style-src 'self'{style}; img-src 'self' data: blob:; \
         font-src 'self'; connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'"
    )
}
