//! Embeds the built page, `web/dist`, which is in the repository: a build of the program needs no
//! Node. Assets are compressed here, once.
#![allow(clippy::unwrap_used, reason = "a build fails by panicking")]

#[path = "src/built.rs"]
mod built;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use flate2::{Compression, GzBuilder};

fn main() {
    let dist = Path::new(&env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("../../../web/dist");
    let dist = dist.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", dist.display()));
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    println!("cargo:rerun-if-changed={}", dist.display());
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/built.rs");

    let mut source = format!("pub static INDEX: &str = include_str!({:?});\n", dist.join("index.html"));
    source += "pub static ASSETS: &[Asset] = &[\n";
    for path in files(&dist) {
        let name = path.strip_prefix(&dist).unwrap().to_str().unwrap();
        if name == "index.html" {
            continue;
        }
        let Some(name) = name.strip_prefix("assets/") else {
            panic!("web/dist/{name}: only index.html and assets/ are served");
        };
        let kind = built::kind_of(name).unwrap_or_else(|reason| panic!("{reason}"));
        let compressed = out.join(format!("{name}.gz"));
        let gzip = (kind.shrinks && is_smaller(&path, &compressed))
            .then(|| format!("include_bytes!({compressed:?})"));
        let gzip = gzip.map_or("None".to_owned(), |gzip| format!("Some({gzip})"));
        let content_type = kind.content_type;
        writeln!(
            source,
            "Asset {{ name: {name:?}, content_type: {content_type:?}, plain: include_bytes!({path:?}), gzip: {gzip} }},"
        )
        .unwrap();
    }
    source += "];\n";
    fs::write(out.join("files.rs"), source).unwrap();
}

/// The files of a directory and those below it, in the order of their names.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display())) {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(files(&entry.path()));
        } else {
            assert!(kind.is_file(), "{}: no regular file", entry.path().display());
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

/// Compresses a file, always to the same bytes, and says whether it is smaller then.
fn is_smaller(from: &Path, to: &Path) -> bool {
    let plain = fs::read(from).unwrap();
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    encoder.write_all(&plain).unwrap();
    let compressed = encoder.finish().unwrap();
    fs::write(to, &compressed).unwrap();
    compressed.len() < plain.len()
}
