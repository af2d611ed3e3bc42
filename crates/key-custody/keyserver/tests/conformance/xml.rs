//! The OASIS XML of a test case: exchanges of a request and the expected response.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

/// One field of a message in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Element {
    /// The tag's name or, without one, its number (`0x540001`).
    pub tag: String,
    /// The type's name; empty for a structure.
    pub kind: String,
    /// The value, with unresolved `$VARIABLES`.
    pub value: String,
    /// The fields of a structure.
    pub children: Vec<Element>,
}

impl Element {
    /// The first field of that name.
    pub fn child(&self, tag: &str) -> Option<&Element> {
        self.children.iter().find(|child| child.tag == tag)
    }

    /// The value of the first field of that name.
    pub fn child_value(&self, tag: &str) -> Option<&str> {
        self.child(tag).map(|child| child.value.as_str())
    }

    /// This field and everything in it.
    pub fn walk<'a>(&'a self, visit: &mut impl FnMut(&'a Element)) {
        visit(self);
        for child in &self.children {
            child.walk(visit);
        }
    }
}

/// A request and its response.
#[derive(Debug, Clone)]
pub struct Exchange {
    pub request: Element,
    pub response: Element,
    /// Whether to repeat it until the response matches.
    pub repeats: bool,
}

/// Reads a case.
///
/// # Panics
///
/// If the file is not a test case, because nothing would be tested.
pub fn exchanges(text: &str) -> Vec<Exchange> {
    let mut reader = Reader::from_str(text);
    // The outermost element is the file itself, whose children are the messages.
    let mut open = vec![Element::default()];
    let mut repeats = false;
    let mut repeated = Vec::new();
    loop {
        match reader.read_event().unwrap_or_else(|error| panic!("not well formed: {error}")) {
            Event::Start(start) => {
                if start.name().as_ref() == "RequestMessage" {
                    repeated.push(std::mem::take(&mut repeats));
                }
                open.push(element(&start));
            }
            Event::Empty(start) => {
                let element = element(&start);
                open.last_mut().unwrap().children.push(element);
            }
            Event::End(_) => {
                let done = open.pop().unwrap();
                open.last_mut().unwrap().children.push(done);
            }
            // The files' remarks, `# [REPEAT] until …`, are between the messages.
            Event::Text(remark) => repeats |= remark.contains("[REPEAT]"),
            Event::Eof => break,
            _ => {}
        }
    }
    let messages = open.remove(0).children.remove(0).children;
    let (pairs, []) = messages.as_chunks::<2>() else { panic!("a request without its response") };
    pairs
        .iter()
        .zip(repeated)
        .map(|([request, response], repeats)| {
            assert_eq!((request.tag.as_str(), response.tag.as_str()), ("RequestMessage", "ResponseMessage"));
            Exchange { request: request.clone(), response: response.clone(), repeats }
        })
        .collect()
}

fn element(start: &BytesStart<'_>) -> Element {
    let mut element = Element { tag: start.name().as_ref().to_owned(), ..Element::default() };
    for attribute in start.attributes() {
        let attribute = attribute.unwrap();
        let value = quick_xml::escape::unescape(&attribute.value).unwrap();
        match attribute.key.as_ref() {
            "type" => element.kind = value.into_owned(),
            "value" => element.value = value.into_owned(),
            "tag" => element.tag = value.into_owned(),
            _ => {}
        }
    }
    // Names are broken over lines in some files, which XML reads as spaces.
    if element.tag == "AttributeName" || element.kind == "Integer" || element.kind == "Enumeration" {
        element.value = element.value.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    element
}
