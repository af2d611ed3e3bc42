//! Grants that pass through hostd.

use std::fmt;

use base64ct::{Base64, Encoding};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use strongroom_types::ProviderKeyId;
use zeroize::Zeroizing;

/// The longest grant, in bytes: enough for about a thousand keys. A VM has a handful.
const GRANT_BYTES_MAX: usize = 16 << 10;

/// A key server's signed permit for this host to fetch certain keys, in one request. hostd forwards
/// it without decoding it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// The grant as the key server takes it; base64 in JSON.
    #[serde(serialize_with = "write", deserialize_with = "read")]
    pub bytes: Zeroizing<Vec<u8>>,
    /// The keys that it covers.
    pub keys: Vec<ProviderKeyId>,
    /// When it expires: seconds since 1970-01-01 00:00 UTC.
    pub expires_unix_seconds: u64,
}

/// Redacted.
impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Grant({} keys, redacted)", self.keys.len())
    }
}

fn write<S: Serializer>(bytes: &Zeroizing<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&Zeroizing::new(Base64::encode_string(bytes)))
}

fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Zeroizing<Vec<u8>>, D::Error> {
    let text = Zeroizing::new(String::deserialize(deserializer)?);
    let bytes = Base64::decode_vec(&text).map(Zeroizing::new).ok();
    bytes
        .filter(|bytes| (1..=GRANT_BYTES_MAX).contains(&bytes.len()))
        .ok_or_else(|| serde::de::Error::custom("a grant is base64, and at most 16 KiB long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_survives_its_text_and_is_not_shown() {
        let bytes = Zeroizing::new(vec![0, 1, 255]);
        let grant = Grant { bytes, keys: vec!["4711".parse().unwrap()], expires_unix_seconds: 7 };
        let text = serde_json::to_string(&grant).unwrap();
        assert_eq!(text, r#"{"bytes":"AAH/","keys":["4711"],"expires_unix_seconds":7}"#);
        assert_eq!(serde_json::from_str::<Grant>(&text).unwrap(), grant);
        assert_eq!(format!("{grant:?}"), "Grant(1 keys, redacted)");
        assert!(serde_json::from_str::<Grant>(&text.replace("AAH/", "")).is_err());
    }
}
