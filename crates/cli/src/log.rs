//! Log lines for people.

use std::io::{self, Write};

use strongroom_types::without_numbers;

/// Writes each line without the kernel's error numbers, which add nothing to the errors' names.
pub struct Lines<W>(pub W);

impl<W: Write> Write for Lines<W> {
    /// Each call has a complete line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(line) {
            Ok(text) => self.0.write_all(without_numbers(text).as_bytes())?,
            Err(_) => self.0.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_has_no_error_numbers() {
        let kept = Kept::default();
        let theirs = kept.clone();
        let writer = move || Lines(theirs.clone());
        let subscriber =
            tracing_subscriber::fmt().without_time().with_ansi(false).with_writer(writer).finish();
        tracing::subscriber::with_default(subscriber, || {
            let error = io::Error::from_raw_os_error(111);
            tracing::warn!(%error, "a key server does not answer");
        });
        let said = String::from_utf8(kept.0.lock().clone()).unwrap();
        assert!(said.contains("error=Connection refused"), "{said}");
        assert!(!said.contains("os error"), "{said}");
    }
}
