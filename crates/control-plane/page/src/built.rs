//! What the page's build may have made: `index.html`, and assets with a hash in their name. The
//! build script embeds nothing else, so that nothing can be served that was not meant to be.

/// The characters of a hash in the name of an asset.
const HASH_CHARACTERS: usize = 8;

/// The kinds of assets: the ending, the content type, and whether compression makes it smaller.
const KINDS: [(&str, &str, bool); 7] = [
    ("js", "text/javascript; charset=utf-8", true),
    ("css", "text/css; charset=utf-8", true),
    ("svg", "image/svg+xml", true),
    ("txt", "text/plain; charset=utf-8", true),
    ("json", "application/json", true),
    ("png", "image/png", false),
    ("woff2", "font/woff2", false),
];

/// The kind of an asset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Its `Content-Type`.
    pub content_type: &'static str,
    /// Whether it is worth compressing.
    pub shrinks: bool,
}

/// Returns the kind of an asset by its name, which is `NAME-HASH.EXT`.
///
/// # Errors
/// What is wrong with the name.
pub fn kind_of(name: &str) -> Result<Kind, String> {
    let wrong = |reason: &str| Err(format!("web/dist/assets/{name}: {reason}"));
    let Some((stem, ending)) = name.rsplit_once('.') else { return wrong("a name has an ending") };
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    if !stem.chars().all(is_plain) || stem.starts_with('.') {
        return wrong("a name has letters, digits, and the characters - _ . alone");
    }
    // It is kept by browsers for a year, so another content must have another name.
    if stem.len() < HASH_CHARACTERS + 2 || stem.as_bytes()[stem.len() - HASH_CHARACTERS - 1] != b'-' {
        return wrong("a name ends in a hyphen and a hash of eight characters before its ending");
    }
    match KINDS.iter().find(|(known, _, _)| *known == ending) {
        Some((_, content_type, shrinks)) => Ok(Kind { content_type, shrinks: *shrinks }),
        None => wrong("there is no content type for this ending; add it to page/src/built.rs"),
    }
}
