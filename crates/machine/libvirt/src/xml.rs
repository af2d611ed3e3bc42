//! What libvirt says in XML, as a tree of the parts that are asked for.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

/// The deepest nesting that is followed; libvirt's own is a dozen.
const DEPTH_MAX: usize = 64;

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
        loop {
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
                Event::Eof => break,
                _ => {}
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

#[cfg(test)]
mod tests {
    use super::*;

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
