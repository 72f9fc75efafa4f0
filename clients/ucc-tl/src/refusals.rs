//! Memory of the process about teams that are not offloaded: a service that could not be reached once is not tried for
//! each further team, and a reason is logged once. A program creates several teams at its start.

use crate::settings::Settings;
use std::sync::{Mutex, PoisonError};
use xgvmi_offload::ClientOptions;

/// Maximum number of remembered reasons of each kind. Later ones are logged each time, and tried again.
const REASONS_MAX: usize = 32;

/// Services with their limits and secret, and the reason why connecting to them has failed.
static FAILED: Mutex<Vec<(ClientOptions, String)>> = Mutex::new(Vec::new());
/// Logged reasons.
static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Notes that connecting has failed.
pub(crate) fn remember(settings: Result<&Settings, String>, reason: &str) {
    let Ok(settings) = settings else { return };
    let mut failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
    if failed.len() < REASONS_MAX {
        failed.push((settings.client.clone(), reason.to_owned()));
    }
}

/// Why connecting with these settings has failed earlier in this process.
pub(crate) fn earlier(settings: &Settings) -> Option<String> {
    let failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
    let found = failed.iter().find(|(of, _)| *of == settings.client);
    found.map(|(_, reason)| format!("{ALREADY}{reason}"))
}

/// Prefix of a reason that an earlier team has met.
const ALREADY: &str = "as for an earlier team, ";

/// Whether a reason has not been logged yet.
pub(crate) fn is_new(reason: &str) -> bool {
    let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
    if reason.contains(ALREADY) || logged.iter().any(|known| known == reason) {
        return false;
    }
    if logged.len() < REASONS_MAX {
        logged.push(reason.to_owned());
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Raw;

    fn settings(service: &str) -> Settings {
        let raw = Raw {
            services: service.to_owned(),
            config: String::new(),
            node: "n0".to_owned(),
            secret_file: String::new(),
            scheme: "stock".to_owned(),
            on_failure: "abort".to_owned(),
            fallback: "host".to_owned(),
            score: 100,
            connect_limit: "30s".to_owned(),
            limit: "60s".to_owned(),
            wait: "spin".to_owned(),
            tune: String::new(),
        };
        Settings::new(&raw, "").expect("valid")
    }

    #[test]
    fn a_service_that_could_not_be_reached_is_not_tried_again() {
        let (gone, other) = (settings("127.0.0.1:1"), settings("127.0.0.1:2"));
        assert_eq!(earlier(&gone), None);
        remember(Ok(&gone), "it is not there");
        let reason = earlier(&gone).expect("remembered");
        assert!(reason.contains("it is not there"), "{reason}");
        assert_eq!(earlier(&other), None);
        // The team that met it has logged it.
        assert!(!is_new(&format!("rank 2: {reason}")));
    }

    #[test]
    fn a_reason_is_logged_once() {
        assert!(is_new("rank 1 has other options"));
        assert!(!is_new("rank 1 has other options"));
        assert!(is_new("rank 2 has other options"));
    }
}
