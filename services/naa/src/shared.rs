//! State that all threads of the service share.

use crate::counters::Counters;
use crate::kernel::{KernelOptions, Stock};
use crate::options::ServiceOptions;
use crate::slot::Slots;
use naaice::server::MemoryLimit;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use xgvmi_daemon::{Admission, LogLevel};
use xgvmi_verbs::{Adapter, HostAliases};

/// State that all threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: ServiceOptions,
    pub(crate) kernels: KernelOptions,
    pub(crate) stock: Stock,
    pub(crate) counters: Counters,
    pub(crate) slots: Slots,
    pub(crate) aliases: HostAliases,
    pub(crate) adapter: Arc<Adapter>,
    /// Memory of the regions of all sessions.
    pub(crate) memory: Arc<MemoryLimit>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) ending: AtomicBool,
    /// Why a part of the service has ended that cannot continue.
    pub(crate) failure: Mutex<Option<String>>,
}

impl Shared {
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// Ends the service with an error: its manager starts it again.
    pub(crate) fn fail(&self, text: String) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(text);
    }

    pub(crate) fn failure(&self) -> Option<String> {
        let failure = self.failure.lock();
        failure.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn error(&self, text: &str) {
        self.log(LogLevel::Error, text);
    }

    /// Logs an event, or why it failed.
    pub(crate) fn note(&self, event: xgvmi_daemon::Result<String>) {
        match event {
            Ok(event) => self.info(&event),
            Err(error) => self.error(&error.to_string()),
        }
    }

    pub(crate) fn info(&self, text: &str) {
        self.log(LogLevel::Info, text);
    }

    fn log(&self, level: LogLevel, text: &str) {
        if level <= self.options.log {
            // Without standard error there is nobody to tell.
            let _ = writeln!(io::stderr(), "xgvmi-naa: {text}");
        }
    }

    pub(crate) fn status(&self) -> String {
        let aliases = self.aliases.stats();
        let status = self.counters.status(aliases.creates, aliases.hits);
        serde_json::to_string(&status).unwrap_or_default()
    }
}
