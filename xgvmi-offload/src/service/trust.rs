//! Where there is a secret: who calls proves that it has it, and whom we call as well, before anything else is said.

use super::{Role, Service, Trust};
use crate::control::Frame;
use crate::error::{OffloadError, Result};
use crate::link::{Link, UNTRUSTED};
use crate::secret::Next;

impl Service {
    /// Sees to what is about the secret, and hands on what is not, of who may say it.
    pub(super) fn get_acquainted(&mut self, id: u64, frame: Frame) -> Option<Frame> {
        let connection = self.connections.get_mut(&id)?;
        let Some(secret) = &self.options.secret else {
            if matches!(frame, Frame::Open(_)) {
                self.refuse(id, "it has a secret, and this service none (--secret-file)");
                return None;
            }
            return Some(frame);
        };
        match (&mut connection.trust, frame) {
            (Trust::None, Frame::Open(nonce)) => match secret.answer(nonce) {
                Ok((called, challenge)) => {
                    connection.trust = Trust::Asked(called);
                    self.tell(id, &challenge);
                }
                Err(error) => self.refuse(id, &format!("no random number: {error}")),
            },
            (Trust::Asked(called), Frame::Proof(proof)) => match called.check(secret, &proof) {
                Some(answer) => {
                    connection.trust = Trust::Full;
                    connection.link.trust(true);
                    self.tell(id, &answer);
                }
                None => self.refuse(id, "its secret is not this service's"),
            },
            (Trust::Calling(calling, purpose), frame) => match calling.hear(secret, &frame) {
                Some(Ok(Next::Send(frame))) => self.tell(id, &frame),
                Some(Ok(Next::Trusted)) => {
                    let purpose = purpose.clone();
                    connection.trust = Trust::Full;
                    self.tell(id, &purpose);
                }
                Some(Err(reason)) => {
                    let reason = format!("{}: {reason}", connection.name);
                    if let Role::Service { job, .. } = connection.role {
                        self.fail(job, &reason, None);
                    }
                }
                // Not what was asked: refusals, and the end of the job.
                None => return Some(frame),
            },
            (Trust::Full, frame) => return Some(frame),
            // An SP that calls us lives already.
            (Trust::None | Trust::Asked(_), Frame::Beat) => {}
            (Trust::None | Trust::Asked(_), _) => self.refuse(id, UNTRUSTED),
        }
        None
    }

    /// What is said to another SP first, if `purpose` is why it is called.
    pub(super) fn call(&self, link: &mut Link, purpose: Frame) -> Result<Trust> {
        let lost = |error| OffloadError::io("calling", error);
        let Some(secret) = &self.options.secret else {
            link.send(&purpose).map_err(lost)?;
            return Ok(Trust::Full);
        };
        let (calling, open) = secret.call().map_err(lost)?;
        link.send(&open).map_err(lost)?;
        Ok(Trust::Calling(calling, purpose))
    }
}
