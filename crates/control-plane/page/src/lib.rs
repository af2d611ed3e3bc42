//! The page: the files that were built from `web/`, and the rules that browsers apply to them.
//!
//! `web/dist` is in the repository, so that the program builds without Node. `npm run build` makes
//! it again; `docs/PAGE.md` says how. The build script embeds `index.html` and the assets, each of
//! which has a hash of its content in its name, and compresses them once. There is nothing here of
//! requests, sessions or the inventory: the server of `control` serves these bytes.
//!
//! | file | holds |
//! |---|---|
//! | `built` | what a build of the page may have made, and the content types |
//! | `policy` | the headers that go with the page |
//!
//! # The page's promises
//! - It loads nothing from anywhere else, and has no inline script or style: [`page_policy`] has
//!   browsers refuse both.
//! - An asset's name changes with its content, so browsers may keep it.
#![forbid(unsafe_code)]

#[cfg(test)]
mod built;
mod policy;

pub use policy::{API_POLICY, EVERY_ANSWER, EVERY_PAGE, Nonce, page_policy};

/// What stands in `index.html` in the place of the nonce of an answer.
const NONCE_PLACE: &str = "@STYLE_NONCE@";

/// A file of the page besides `index.html`.
#[derive(Clone, Copy, Debug)]
pub struct Asset {
    /// Its name below `/assets/`.
    pub name: &'static str,
    /// Its `Content-Type`.
    pub content_type: &'static str,
    /// Its content.
    pub plain: &'static [u8],
    /// The same compressed by gzip, if that is smaller.
    pub gzip: Option<&'static [u8]>,
}

mod files {
    use super::Asset;

    include!(concat!(env!("OUT_DIR"), "/files.rs"));
}

/// Returns `index.html` with the nonce of an answer.
pub fn index(nonce: &Nonce) -> String {
    files::INDEX.replace(NONCE_PLACE, nonce.as_str())
}

/// Returns the asset with exactly this name. Names are compared byte by byte: there is no directory
/// that a path could lead out of.
pub fn asset(name: &str) -> Option<&'static Asset> {
    files::ASSETS.iter().find(|asset| asset.name == name)
}

/// All assets.
pub fn assets() -> &'static [Asset] {
    files::ASSETS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_of_a_build_are_refused() {
        for name in [
            "index.js",
            "index-1234567.js",
            "index-DiwrgTda",
            "-DiwrgTda.js",
            "index-DiwrgTda.js.map",
            "index-DiwrgTda.html",
            "index-DiwrgTda.JS",
            "../index-DiwrgTda.js",
            "a/index-DiwrgTda.js",
            "in dex-DiwrgTda.js",
            ".index-DiwrgTda.js",
            "",
        ] {
            assert!(built::kind_of(name).is_err(), "{name}");
        }
        for name in ["index-DiwrgTda.js", "rfb-Di-_gTda.css", "a.b-DiwrgTda.woff2"] {
            assert!(built::kind_of(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn each_asset_of_the_page_is_of_a_build_and_smaller_if_it_is_compressed() {
        for asset in assets() {
            let kind = built::kind_of(asset.name).unwrap();
            assert_eq!(kind.content_type, asset.content_type);
            assert!(asset.gzip.is_none_or(|gzip| kind.shrinks && gzip.len() < asset.plain.len()));
            assert_eq!(super::asset(asset.name).map(|found| found.plain), Some(asset.plain));
        }
    }

    #[test]
    fn the_index_has_the_nonce_and_no_inline_script_or_style() {
        let nonce = Nonce::of([7; Nonce::BYTES]);
        let index = index(&nonce);
        assert!(!index.contains(NONCE_PLACE), "{index}");
        assert!(index.contains(&format!("content=\"{}\"", nonce.as_str())), "{index}");
        assert!(!index.contains("style=") && !index.contains("javascript:"), "{index}");
        for script in index.split("<script").skip(1) {
            let (attributes, rest) = script.split_once('>').unwrap();
            assert!(attributes.contains(" src=\"/assets/"), "{attributes}");
            assert!(rest.trim_start().starts_with("</script>"), "{rest}");
        }
    }
}
