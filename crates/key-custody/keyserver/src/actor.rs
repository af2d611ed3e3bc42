//! Who acts, in the audit log's terms, and texts of clients within its limits.

use strongroom_audit::Actor;
use strongroom_audit::limits::TEXT_MAX_BYTES;

use crate::access::Identity;

/// The actor of what the server does by itself.
pub(crate) fn server() -> Actor {
    Actor { role: "server".into(), name: "key server".into(), ..Actor::default() }
}

/// The actor of a client whose certificate was accepted.
pub(crate) fn actor_of(identity: &Identity, address: Option<String>) -> Actor {
    Actor {
        fingerprint: Some(identity.certificate.to_string()),
        role: identity.role.name().into(),
        name: identity.name.as_str().into(),
        address,
    }
}

/// Limits a possibly client-supplied text to the log's maximum, and marks a cut.
pub(crate) fn within_limits(text: &str) -> String {
    const MARK: &str = "…";
    if text.len() <= TEXT_MAX_BYTES {
        return text.to_owned();
    }
    format!("{}{MARK}", &text[..text.floor_char_boundary(TEXT_MAX_BYTES - MARK.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_text_is_cut_at_a_letter() {
        let text = "é".repeat(TEXT_MAX_BYTES);
        let cut = within_limits(&text);
        assert!(cut.len() <= TEXT_MAX_BYTES && cut.ends_with('…'), "{}", cut.len());
        assert_eq!(within_limits("short"), "short");
    }
}
