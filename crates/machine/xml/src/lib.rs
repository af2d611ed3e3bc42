//! What other programs say in XML, as a tree: virsh's descriptions of domains, and the envelopes of
//! VMs from elsewhere.
//!
//! Only the five entities that XML itself has are expanded, a document's own declarations (DTD) are
//! refused, and nothing is fetched. Nesting and the count of elements have limits; the caller
//! limits the length.
#![forbid(unsafe_code)]

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

/// The deepest nesting that is followed; that of libvirt and OVF is a dozen.
const DEPTH_MAX: usize = 64;
/// The most elements.
const ELEMENTS_MAX: usize = 100_000;

/// An element, with its attributes, the elements in it, and its text.
#[derive(Debug, Default)]
pub struct Element {
    name: String,
    attributes: Vec<(String, String)>,
    children: Vec<Element>,
    text: String,
}

impl Element {
    /// Reads one document, or several in a row; they are the children of what is returned.
    ///
    /// # Errors
    /// Says why it is no XML.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut reader = Reader::from_str(text);
        let mut open = vec![Self::default()];
        let mut elements = 0;
        loop {
            elements += 1;
            if elements > 3 * ELEMENTS_MAX {
                return Err(format!("it has more than {ELEMENTS_MAX} elements"));
            }
            match reader.read_event().map_err(|error| error.to_string())? {
                Event::Start(start) if open.len() < DEPTH_MAX => open.push(Self::begin(&start)?),
                Event::Start(_) => return Err(format!("it is nested more than {DEPTH_MAX} deep")),
                Event::Empty(start) => {
                    let element = Self::begin(&start)?;
                    open.last_mut().ok_or("it ends twice")?.children.push(element);
                }
                Event::End(_) => {
                    let element = open.pop().ok_or("it ends twice")?;
                    open.last_mut().ok_or("it ends twice")?.children.push(element);
                }
                Event::Text(text) => open.last_mut().ok_or("it ends twice")?.text.push_str(&text),
                Event::GeneralRef(reference) => {
                    let text = format!("&{};", &*reference);
                    let text =
                        quick_xml::escape::unescape(&text).map_err(|error| error.to_string())?.into_owned();
                    open.last_mut().ok_or("it ends twice")?.text.push_str(&text);
                }
                Event::CData(text) => open.last_mut().ok_or("it ends twice")?.text.push_str(&text),
                Event::DocType(_) => return Err("it has declarations of its own (DTD)".to_owned()),
                Event::Decl(_) | Event::PI(_) | Event::Comment(_) => {}
                Event::Eof => break,
            }
        }
        match (open.pop(), open.is_empty()) {
            (Some(root), true) => Ok(root),
            _ => Err("it ends in the middle".to_owned()),
        }
    }

    fn begin(start: &BytesStart<'_>) -> Result<Self, String> {
        let mut element = Self { name: start.name().as_ref().to_owned(), ..Self::default() };
        for attribute in start.attributes() {
            let attribute = attribute.map_err(|error| error.to_string())?;
            let value = quick_xml::escape::unescape(&attribute.value).map_err(|error| error.to_string())?;
            element.attributes.push((attribute.key.as_ref().to_owned(), value.into_owned()));
        }
        Ok(element)
    }

    /// The elements of this name in it.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Self> {
        self.children.iter().filter(move |child| child.name == name)
    }

    /// The elements of this name in it, whatever their namespace.
    pub fn all_local<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Self> {
        self.children.iter().filter(move |child| local(&child.name) == name)
    }

    /// The first element of this name in it, whatever its namespace.
    pub fn first_local(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|child| local(&child.name) == name)
    }

    /// An attribute, whatever its namespace.
    pub fn attribute_local(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(found, _)| local(found) == name).map(|(_, value)| value.as_str())
    }

    /// The name, without that of its namespace.
    pub fn local_name(&self) -> &str {
        local(&self.name)
    }

    /// The elements in it.
    pub fn children(&self) -> &[Self] {
        &self.children
    }

    /// The first of the elements that this path leads to.
    pub fn find<'a>(&'a self, path: &[&'a str]) -> Option<&'a Self> {
        match path {
            [] => Some(self),
            [name, rest @ ..] => self.all(name).find_map(|child| child.find(rest)),
        }
    }

    /// An attribute.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// An attribute of the first element that this path leads to.
    pub fn attribute_of(&self, path: &[&str], name: &str) -> Option<&str> {
        // The path's words are not needed longer than this, unlike what they lead to.
        match path {
            [] => self.attribute(name),
            [first, rest @ ..] => self
                .children
                .iter()
                .filter(|child| child.name == *first)
                .find_map(|child| child.attribute_of(rest, name)),
        }
    }

    /// Its text.
    pub fn text(&self) -> &str {
        self.text.trim()
    }
}

fn local(name: &str) -> &str {
    name.split_once(':').map_or(name, |(_, local)| local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_and_their_entities_are_refused() {
        for text in [
            "<!DOCTYPE a SYSTEM 'file:///etc/passwd'><a/>",
            "<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>",
            "<a>&b;</a>",
        ] {
            assert!(Element::read(text).is_err(), "{text}");
        }
        assert!(Element::read(&"<a/>".repeat(400_000)).is_err());
    }

    #[test]
    fn names_are_found_in_any_namespace() {
        let read = Element::read("<o:a xmlns:o='x'><p:b q:c='1'><![CDATA[<d>]]></p:b></o:a>").unwrap();
        let found = read.first_local("a").unwrap().first_local("b").unwrap();
        assert_eq!((found.attribute_local("c"), found.text(), found.local_name()), (Some("1"), "<d>", "b"));
    }

    #[test]
    fn what_is_no_xml_is_refused_in_words() {
        for text in ["<a", "<a>", "<a></b>", "</a>", "<a b='&nothing;'/>", "<a b='1' b='2'/>"] {
            assert!(Element::read(text).is_err(), "{text}");
        }
        assert!(Element::read(&"<a>".repeat(100_000)).is_err());
    }

    #[test]
    fn paths_lead_to_what_was_said() {
        let both =
            Element::read("<a><b c='&lt;1&apos;'/></a>\n\n<a><b><d>two &amp; &#x33;</d></b></a>").unwrap();
        assert_eq!(both.all("a").count(), 2);
        assert_eq!(both.attribute_of(&["a", "b"], "c"), Some("<1'"));
        assert_eq!(both.find(&["a", "b", "d"]).unwrap().text(), "two & 3");
        assert!(both.find(&["b"]).is_none());
    }
}
