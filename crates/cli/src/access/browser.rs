//! What a browser on this machine brings back from an identity provider (RFC 8252, 7.3).

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use strongroom_api::Name;

use crate::error::CliError;

/// The longest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// How long a connection may take to send its request.
const REQUEST_WITHIN: Duration = Duration::from_secs(5);
/// The pause between looks for a connection.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// The page for the browser.
const PAGE: &str =
    "<!doctype html><title>Strongroom</title><p>You can close this page. The command says how it went on.";

/// A place on this machine that a provider sends the browser back to.
pub struct Callback {
    listener: TcpListener,
    path: String,
    redirect: String,
}

/// What the browser brought.
#[derive(Debug, PartialEq, Eq)]
pub struct Brought {
    /// The code.
    pub code: String,
    /// The issuer that the provider names.
    pub issuer: Option<String>,
}

impl Callback {
    /// Listens on this port, or on one that is free.
    pub fn listen(provider: &Name, port: u16) -> Result<Self, CliError> {
        let failed = |error: io::Error| {
            CliError::Usage(format!("cannot listen on 127.0.0.1:{port} for the browser: {error}"))
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        // A person may end the command while it waits.
        listener.set_nonblocking(true).map_err(failed)?;
        let path = format!("/callback/{provider}");
        Ok(Self { listener, redirect: format!("http://{address}{path}"), path })
    }

    /// Where the provider sends the browser back to.
    pub fn redirect(&self) -> &str {
        &self.redirect
    }

    /// Waits for the browser with this state. Everything else that connects is turned away: other
    /// programs of this machine can connect as well.
    pub fn wait(&self, state: &str, within: Duration) -> Result<Brought, CliError> {
        let begun = Instant::now();
        while begun.elapsed() < within {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if let Some(outcome) = self.serve(stream, state) {
                        return outcome;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(LOOK_PAUSE),
                Err(error) => {
                    return Err(CliError::Usage(format!("cannot wait for the browser: {error}")));
                }
            }
        }
        Err(CliError::Usage(
            "no browser came back from the identity provider in time; begin again".to_owned(),
        ))
    }

    fn serve(&self, mut stream: TcpStream, state: &str) -> Option<Result<Brought, CliError>> {
        let target = target_of(&mut stream)?;
        let outcome = self.outcome(&target, state);
        let (status, page) = match outcome {
            Some(_) => ("200 OK", PAGE),
            None => ("404 Not Found", "There is nothing here."),
        };
        let head = "content-type: text/html\r\ncache-control: no-store\r\nreferrer-policy: no-referrer\r\nconnection: close";
        let answer = format!("HTTP/1.1 {status}\r\n{head}\r\ncontent-length: {}\r\n\r\n{page}", page.len());
        // The code is here, whether the browser shows the page or not.
        let _ = stream.write_all(answer.as_bytes());
        outcome
    }

    fn outcome(&self, target: &str, state: &str) -> Option<Result<Brought, CliError>> {
        let query = target.strip_prefix(&self.path)?.strip_prefix('?')?;
        let mut values = Values::default();
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let place = match name {
                "state" => &mut values.state,
                "code" => &mut values.code,
                "iss" => &mut values.issuer,
                "error" => &mut values.error,
                _ => continue,
            };
            // What comes twice is ambiguous.
            if place.replace(decoded(value)?).is_some() {
                return None;
            }
        }
        if values.state.as_deref() != Some(state) {
            return None;
        }
        match (values.code, values.error) {
            (Some(code), None) => Some(Ok(Brought { code, issuer: values.issuer })),
            (_, Some(error)) => {
                let error: String = error.chars().filter(|one| !one.is_control()).take(100).collect();
                let message = format!("the identity provider does not sign in: {error}");
                Some(Err(CliError::Api { code: "unauthorized".to_owned(), message }))
            }
            (None, None) => None,
        }
    }
}

#[derive(Default)]
struct Values {
    state: Option<String>,
    code: Option<String>,
    issuer: Option<String>,
    error: Option<String>,
}

/// The path and query of a GET request.
fn target_of(stream: &mut TcpStream) -> Option<String> {
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(REQUEST_WITHIN)).ok()?;
    stream.set_write_timeout(Some(REQUEST_WITHIN)).ok()?;
    let begun = Instant::now();
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = stream.read(&mut part).ok().filter(|read| *read > 0)?;
        head.extend_from_slice(part.get(..read)?);
        if head.len() > HEAD_BYTES_MAX || begun.elapsed() > REQUEST_WITHIN {
            return None;
        }
    }
    let head = String::from_utf8(head).ok()?;
    let target = head.strip_prefix("GET ")?.split(' ').next()?;
    Some(target.to_owned())
}

/// A value of a query.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_answer_with_the_state_counts() {
        let callback = Callback::listen(&"corp".parse().unwrap(), 0).unwrap();
        let right = "/callback/corp?code=a%2Fb+c&iss=https%3A%2F%2Fid.example&state=s1&session_state=x";
        let brought = callback.outcome(right, "s1").unwrap().unwrap();
        assert_eq!(
            brought,
            Brought { code: "a/b c".to_owned(), issuer: Some("https://id.example".to_owned()) }
        );
        for other in [
            "/callback/other?code=a&state=s1",
            "/callback/corp?code=a&state=s2",
            "/callback/corp?code=a",
            "/callback/corp?code=a&state=s1&state=s1",
            "/callback/corp?code=a&code=b&state=s1",
            "/callback/corp?state=s1",
            "/callback/corp?code=%zz&state=s1",
            "/callback/corp",
            "/favicon.ico",
        ] {
            assert!(callback.outcome(other, "s1").is_none(), "{other}");
        }
        let refused = callback.outcome("/callback/corp?error=access_denied%1b&state=s1", "s1").unwrap();
        assert_eq!(refused.unwrap_err().to_string(), "the identity provider does not sign in: access_denied");
    }

    #[test]
    fn others_that_connect_do_not_end_the_wait() {
        let callback = Callback::listen(&"corp".parse().unwrap(), 0).unwrap();
        let address = callback.listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| callback.wait("s1", Duration::from_secs(20)));
            drop(TcpStream::connect(address).unwrap());
            for (target, status) in
                [("/callback/corp?code=evil&state=guessed", "404"), ("/callback/corp?code=c&state=s1", "200")]
            {
                let mut stream = TcpStream::connect(address).unwrap();
                write!(stream, "GET {target} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
            }
            assert_eq!(waits.join().unwrap().unwrap(), Brought { code: "c".to_owned(), issuer: None });
        });
    }
}
