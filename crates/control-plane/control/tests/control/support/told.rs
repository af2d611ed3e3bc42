//! What the whole test program says in its log, at any level, while somebody listens.

use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::{Event, Id, Metadata, Subscriber, span};

/// All that is said.
#[derive(Default)]
struct Told {
    listeners: AtomicUsize,
    text: Mutex<String>,
}

/// Listens until it is dropped. Tests that run beside are heard, too.
pub struct Listener(());

static TOLD: Told = Told { listeners: AtomicUsize::new(0), text: Mutex::new(String::new()) };
static SET: OnceLock<()> = OnceLock::new();

impl Listener {
    pub fn begin() -> Self {
        SET.get_or_init(|| tracing::subscriber::set_global_default(&TOLD).unwrap());
        TOLD.listeners.fetch_add(1, Ordering::SeqCst);
        tracing::callsite::rebuild_interest_cache();
        Self(())
    }

    /// What has been said since somebody listens.
    pub fn heard(&self) -> String {
        TOLD.text.lock().clone()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        TOLD.listeners.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Fields<'text>(&'text mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl Subscriber for &'static Told {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        self.listeners.load(Ordering::SeqCst) > 0
    }

    fn register_callsite(&self, _: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        tracing::subscriber::Interest::sometimes()
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> Id {
        let mut text = self.text.lock();
        text.push_str(span.metadata().name());
        span.record(&mut Fields(&mut text));
        text.push('\n');
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &span::Record<'_>) {
        values.record(&mut Fields(&mut self.text.lock()));
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = self.text.lock();
        event.record(&mut Fields(&mut text));
        text.push('\n');
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
