//! Time limits of an SP: beats, late peers, and jobs that do not come together.

use super::connections::Role;
use super::state::{REFUSALS_LOGGED, Sp};
use super::transport::Fabric;
use crate::control::Frame;
use std::time::{Duration, Instant};
use xgvmi_daemon::LogLevel;

/// Beats per silence limit. Opening UCX, or creating the aliases of announced keys, takes an SP a fraction of a second,
/// and several seconds on an overloaded machine.
pub(super) const BEATS: u32 = 10;

/// Time limit for a caller to identify itself, for an incomplete frame to complete, and for a connection's last frames.
const PATIENCE: Duration = Duration::from_secs(10);

/// Key of the listener in the poller.
pub(super) const LISTENER: u64 = 1;

impl<F: Fabric> Sp<F> {
    /// Sends beats, and ends connections and jobs that exceed their time limits.
    pub(super) fn keep_time(&mut self) {
        let now = Instant::now();
        self.timers_looked = now;
        if let Some(standstill) = self.pulse.look(now, xgvmi_daemon::thread_time()) {
            self.log(LogLevel::Error, format_args!("{standstill}"));
        }
        self.accepts = 0;
        if self.accept_after.is_some_and(|after| now >= after) {
            self.resume_accepting();
        }
        if self.refusals_logged > REFUSALS_LOGGED {
            let more = self.refusals_logged - REFUSALS_LOGGED;
            self.log(LogLevel::Error, format_args!("refused {more} more"));
        }
        self.refusals_logged = 0;
        self.secrets.expire(now);
        self.end_late_connections(now);
        let silence_max = self.options.silence_limit;
        let mut beats = Vec::new();
        let mut failed = Vec::new();
        for (id, entry) in &mut self.jobs {
            if now - entry.beat > silence_max / BEATS {
                entry.beat = now;
                beats.extend(entry.services.values());
                // A rank reads only in its calls. What it has not read must not fill its connection.
                beats.extend(entry.ranks.values().filter(|rank| {
                    let connection = self.connections.get_mut(**rank);
                    connection.is_some_and(|c| !std::mem::replace(&mut c.is_asked, true))
                }));
            }
            if let Some((reason, until)) = &entry.suspect
                && now > *until
            {
                failed.push((*id, reason.clone()));
                continue;
            }
            if !entry.is_ready && now - entry.since > self.options.setup_limit {
                failed.push((*id, entry.missing(self.options.setup_limit)));
            }
        }
        for connection in beats {
            self.tell(connection, &Frame::Beat);
        }
        for (id, reason) in failed {
            self.fail(id, &reason, None);
        }
    }

    fn end_late_connections(&mut self, now: Instant) {
        let silence_max = self.options.silence_limit;
        let mut late = Vec::new();
        for (id, connection) in self.connections.iter_mut() {
            connection.frames = 0;
            let stuck = connection
                .link
                .partial_since()
                .is_some_and(|since| now - since > PATIENCE);
            let why = match connection.role {
                Role::Caller | Role::Candidate(_) if now - connection.since > PATIENCE => {
                    format!("it has not said within {} s who it is", PATIENCE.as_secs())
                }
                Role::Leaving if now - connection.since > PATIENCE => String::new(),
                Role::Service { .. } if now - connection.heard > silence_max => {
                    format!("nothing was heard for {} s", silence_max.as_secs())
                }
                Role::Rank { .. } | Role::Service { .. } if stuck => {
                    format!("a frame has not ended within {} s", PATIENCE.as_secs())
                }
                _ => continue,
            };
            late.push((id, why));
        }
        for (id, why) in late {
            match self.connections.get(id).map(|connection| &connection.role) {
                Some(Role::Caller | Role::Candidate(_)) => self.refuse(id, "late", &why),
                _ => self.lose(id, &format!("is lost: {why}")),
            }
        }
    }
}
