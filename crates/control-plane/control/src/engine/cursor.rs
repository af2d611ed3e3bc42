//! Cursors: the start of a list's next page, in a form that callers only pass back.

use base64ct::{Base64UrlUnpadded, Encoding};
use strongroom_api::limits::CURSOR_MAX_BYTES;
use strongroom_api::{ErrorCode, Problem};

/// Separates the list's name from the key. Neither contains it.
const SEPARATOR: char = '\0';

/// Returns the cursor for the entries after this key in this list.
pub fn after(list: &str, key: &str) -> String {
    Base64UrlUnpadded::encode_string(format!("{list}{SEPARATOR}{key}").as_bytes())
}

/// Returns the key of the last entry of the previous page.
///
/// # Errors
/// [`ErrorCode::BadCursor`] if it is not a cursor of this list.
pub fn read(list: &str, asked: Option<&str>) -> Result<Option<String>, Problem> {
    let Some(cursor) = asked else { return Ok(None) };
    let key = (cursor.len() <= CURSOR_MAX_BYTES)
        .then(|| Base64UrlUnpadded::decode_vec(cursor).ok())
        .flatten()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .and_then(|text| text.strip_prefix(list)?.strip_prefix(SEPARATOR).map(str::to_owned));
    key.map(Some).ok_or_else(bad)
}

/// The problem for a cursor that no page of the list has returned.
pub fn bad() -> Problem {
    Problem::new(ErrorCode::BadCursor, "cursor: this is not the `next` of a page of this list")
        .next("leave `cursor` out, and read the list from its beginning")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_of_its_list_alone() {
        let longest = "x".repeat(255);
        for key in ["web1", "", "a b/c", &longest] {
            let cursor = after("vms", key);
            assert!(cursor.len() <= CURSOR_MAX_BYTES);
            assert_eq!(read("vms", Some(&cursor)).unwrap().as_deref(), Some(key));
            for list in ["vm", "vms2", "tasks", ""] {
                assert_eq!(read(list, Some(&cursor)).unwrap_err().code, ErrorCode::BadCursor);
            }
        }
        let long = "A".repeat(CURSOR_MAX_BYTES + 1);
        for cursor in ["", "zzz", "web1", "%%", &long] {
            assert_eq!(read("vms", Some(cursor)).unwrap_err().code, ErrorCode::BadCursor, "{cursor}");
        }
        assert_eq!(read("vms", None).unwrap(), None);
    }
}
