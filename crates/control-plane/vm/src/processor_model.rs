//! The processor that a guest sees.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::limits::QEMU_NAME_BYTES_MAX;

/// The processor that a guest sees.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ProcessorModel {
    /// `host`: that of the host, with all that it has.
    #[default]
    Host,
    /// `x86-64-v2` and so on: a level of the x86-64 psABI.
    Level(Level),
    /// A model of QEMU, by its name there, such as `Haswell-noTSX-IBRS`.
    Named(QemuName),
}

/// A level of the x86-64 psABI: what compilers and distributions expect of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// SSE 4.2: processors since 2009.
    V2,
    /// AVX2, and AES and XSAVEOPT, which all processors of this level have: processors since 2013.
    V3,
    /// AVX-512 as servers have it.
    V4,
}

/// A name in QEMU's words: letters, digits, `.`, `_` and `-`, the first a letter or digit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct QemuName(String);

/// A text that is no name of a processor or machine type.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{0}' is no name of a processor or machine type: write it as `strongroom host show` does")]
pub struct QemuNameError(pub String);

/// What each level has beyond the one before it, in QEMU's words, over QEMU's model `qemu64`.
/// `xsaveopt` is not the psABI's: all such processors have it, and Linux 6.1 hangs in QEMU 7.2's
/// emulator with `xsave` alone.
const ADDED: [(Level, &[&str]); 3] = [
    (Level::V2, &["cx16", "lahf-lm", "popcnt", "sse4.1", "sse4.2", "ssse3"]),
    (
        Level::V3,
        &[
            "abm",
            "aes",
            "avx",
            "avx2",
            "bmi1",
            "bmi2",
            "f16c",
            "fma",
            "movbe",
            "pclmulqdq",
            "xsave",
            "xsaveopt",
        ],
    ),
    (Level::V4, &["avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"]),
];

impl Level {
    /// All levels, the least one first.
    pub const ALL: [Self; 3] = [Self::V2, Self::V3, Self::V4];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2 => "x86-64-v2",
            Self::V3 => "x86-64-v3",
            Self::V4 => "x86-64-v4",
        }
    }

    /// What a processor of this level has beyond QEMU's `qemu64`, in QEMU's words.
    pub fn features(self) -> impl Iterator<Item = &'static str> {
        ADDED.iter().filter(move |(level, _)| *level <= self).flat_map(|(_, added)| added.iter().copied())
    }
}

impl ProcessorModel {
    /// Whether it is that of the host.
    pub fn is_host(&self) -> bool {
        *self == Self::Host
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Host => "host",
            Self::Level(level) => level.as_str(),
            Self::Named(name) => name.as_str(),
        }
    }
}

impl QemuName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ProcessorModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Display for QemuName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for QemuName {
    type Error = QemuNameError;

    fn try_from(text: String) -> Result<Self, QemuNameError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let good = (1..=QEMU_NAME_BYTES_MAX).contains(&text.len())
            && text.bytes().all(allowed)
            && text.starts_with(|first: char| first.is_ascii_alphanumeric());
        if good { Ok(Self(text)) } else { Err(QemuNameError(text)) }
    }
}

impl FromStr for QemuName {
    type Err = QemuNameError;

    fn from_str(text: &str) -> Result<Self, QemuNameError> {
        text.to_owned().try_into()
    }
}

impl From<QemuName> for String {
    fn from(name: QemuName) -> Self {
        name.0
    }
}

impl TryFrom<String> for ProcessorModel {
    type Error = QemuNameError;

    fn try_from(text: String) -> Result<Self, QemuNameError> {
        if text == Self::Host.as_str() {
            return Ok(Self::Host);
        }
        match Level::ALL.into_iter().find(|level| level.as_str() == text) {
            Some(level) => Ok(Self::Level(level)),
            None => text.try_into().map(Self::Named),
        }
    }
}

impl FromStr for ProcessorModel {
    type Err = QemuNameError;

    fn from_str(text: &str) -> Result<Self, QemuNameError> {
        text.to_owned().try_into()
    }
}

impl From<ProcessorModel> for String {
    fn from(model: ProcessorModel) -> Self {
        model.as_str().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_a_name_and_never_an_option() {
        for good in ["host", "x86-64-v2", "x86-64-v4", "Haswell-noTSX-IBRS", "486", "Opteron_G5"] {
            let model: ProcessorModel = good.parse().unwrap();
            assert_eq!(model.to_string(), good);
            assert_eq!(serde_json::to_string(&model).unwrap(), format!("\"{good}\""));
        }
        assert_eq!("x86-64-v3".parse(), Ok(ProcessorModel::Level(Level::V3)));
        let long = "a".repeat(QEMU_NAME_BYTES_MAX + 1);
        for bad in ["", "-help", "?", "max,enforce=off", "host,+vmx", "a b", "a\nb", "ä", long.as_str()] {
            assert_eq!(bad.parse::<ProcessorModel>(), Err(QemuNameError(bad.to_owned())));
            assert!(serde_json::from_value::<ProcessorModel>(bad.into()).is_err());
        }
    }

    #[test]
    fn a_level_has_all_of_the_lesser_ones() {
        for pair in Level::ALL.windows(2) {
            let (less, more): (Vec<_>, Vec<_>) = (pair[0].features().collect(), pair[1].features().collect());
            assert!(less.iter().all(|feature| more.contains(feature)) && less.len() < more.len());
        }
    }
}
