//! A secret that ranks and service processes share, and how two of them find out that both have it without telling it.
//!
//! ```text
//! caller                                        SP that was called
//!   |---- OPEN, a random number -------------------->|
//!   |<--- CHALLENGE, another ------------------------|
//!   |---- PROOF: MAC(secret, "caller", both) ------->|   refused if it is not what the SP makes of it
//!   |<--- PROOF: MAC(secret, "service", both) -------|   given up if it is not what the caller makes of it
//!   |---- HELLO or PEER ---------------------------->|
//! ```
//!
//! The caller proves first: a stranger who only calls gets nothing to try guesses on. The MAC is BLAKE3's keyed mode, and
//! comparisons take the same time whatever is compared. What is said afterwards is neither signed nor encrypted: this
//! keeps strangers and mistakes out, not those who can change what is on its way.

use super::control::Frame;
use super::error::{OffloadError, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use xgvmi_pool::SecretError;

/// What a key derived from the file is for; another use of the same file gets another key.
const CONTEXT: &str = "xgvmi 2026 service process control traffic";

/// A number that is used once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Nonce([u8; 32]);

/// What only who has the secret can say of two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Proof([u8; 32]);

/// Which of the two speaks: one's proof is no answer of the other's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Caller,
    Service,
}

/// The secret. It is shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

/// A caller that has sent its number.
#[derive(Debug)]
pub(super) struct Calling {
    mine: Nonce,
    theirs: Option<Nonce>,
}

/// An SP that has answered with its own.
#[derive(Debug)]
pub(super) struct Called {
    theirs: Nonce,
    mine: Nonce,
}

/// What a caller does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Sends this and waits.
    Send(Frame),
    /// Says what it has come for: the other side has the secret too.
    Trusted,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Reads the secret in a file, without the white space around it.
    ///
    /// # Errors
    /// A file that cannot be read, that everybody may read or write, or with fewer than 16 or more than 4,096 bytes.
    pub fn read(path: &Path) -> Result<Self> {
        let refused = |what: String| {
            OffloadError::Options(format!("the secret in {} {what}", path.display()))
        };
        let mode = fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
        if mode & 0o007 != 0 {
            return Err(refused(format!(
                "is open to everybody (mode {:03o}): chmod o= it",
                mode & 0o777
            )));
        }
        let secret = xgvmi_pool::Secret::from_file(path).map_err(|error| match error {
            SecretError::File { .. } => OffloadError::Options(error.to_string()),
            _ => refused(format!(
                "is none: {error} (`openssl rand -hex 32` makes a good one)"
            )),
        })?;
        Ok(Self(secret.derive_key(CONTEXT)))
    }

    /// Begins as a caller.
    pub(super) fn call(&self) -> io::Result<(Calling, Frame)> {
        let mine = Nonce::random()?;
        Ok((Calling { mine, theirs: None }, Frame::Open(mine)))
    }

    /// Answers a caller.
    pub(super) fn answer(&self, theirs: Nonce) -> io::Result<(Called, Frame)> {
        let mine = Nonce::random()?;
        Ok((Called { theirs, mine }, Frame::Challenge(mine)))
    }

    fn prove(&self, side: Side, caller: Nonce, service: Nonce) -> Proof {
        let side: &[u8] = match side {
            Side::Caller => b"caller ",
            Side::Service => b"service",
        };
        let text = [side, &caller.0, &service.0].concat();
        Proof(*blake3::keyed_hash(&self.0, &text).as_bytes())
    }
}

impl Calling {
    /// Goes on with what the SP says; `None` if it says something else.
    ///
    /// # Errors
    /// In words, if it does not have the secret.
    pub(super) fn hear(
        &mut self,
        secret: &Secret,
        frame: &Frame,
    ) -> Option<std::result::Result<Next, &'static str>> {
        match (frame, self.theirs) {
            (Frame::Challenge(theirs), None) => {
                self.theirs = Some(*theirs);
                let proof = secret.prove(Side::Caller, self.mine, *theirs);
                Some(Ok(Next::Send(Frame::Proof(proof))))
            }
            (Frame::Proof(proof), Some(theirs)) => {
                let expect = secret.prove(Side::Service, self.mine, theirs);
                Some(if proof.is(&expect) {
                    Ok(Next::Trusted)
                } else {
                    Err("it does not have the secret of who calls it")
                })
            }
            _ => None,
        }
    }
}

impl Called {
    /// What to answer a proof; `None` if the caller does not have the secret.
    pub(super) fn check(&self, secret: &Secret, proof: &Proof) -> Option<Frame> {
        let expect = secret.prove(Side::Caller, self.theirs, self.mine);
        let answer = secret.prove(Side::Service, self.theirs, self.mine);
        proof.is(&expect).then_some(Frame::Proof(answer))
    }
}

impl Nonce {
    fn random() -> io::Result<Self> {
        let mut bytes = [0; 32];
        let (first, second) = bytes.split_at_mut(16);
        first.copy_from_slice(&super::random()?.to_ne_bytes());
        second.copy_from_slice(&super::random()?.to_ne_bytes());
        Ok(Self(bytes))
    }
}

impl Proof {
    /// Whether they are equal, in a time that does not tell where they differ.
    fn is(&self, other: &Self) -> bool {
        blake3::Hash::from_bytes(self.0) == blake3::Hash::from_bytes(other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn secret(text: &str) -> Result<Secret> {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(text.as_bytes()).expect("written");
        Secret::read(file.path())
    }

    /// What caller and SP come to: the caller's verdict, and whether the SP is content.
    fn meet(
        caller: &Secret,
        service: &Secret,
    ) -> (Option<std::result::Result<Next, &'static str>>, bool) {
        let (mut calling, open) = caller.call().expect("random");
        let Frame::Open(nonce) = open else {
            panic!("{open:?}")
        };
        let (called, challenge) = service.answer(nonce).expect("random");
        let Some(Ok(Next::Send(Frame::Proof(proof)))) = calling.hear(caller, &challenge) else {
            panic!("no proof");
        };
        match called.check(service, &proof) {
            Some(answer) => (calling.hear(caller, &answer), true),
            // A caller may be answered by somebody who pays no heed to its proof.
            None => (calling.hear(caller, &Frame::Proof(Proof([0; 32]))), false),
        }
    }

    #[test]
    fn who_has_the_secret_is_trusted_and_nobody_else() {
        let one = secret("0123456789abcdef\n").expect("long enough");
        let same = secret("0123456789abcdef").expect("long enough");
        let other = secret("0123456789abcdeF").expect("long enough");
        assert_eq!(meet(&one, &same), (Some(Ok(Next::Trusted)), true));
        let (verdict, content) = meet(&one, &other);
        assert!(matches!(verdict, Some(Err(_))) && !content);
    }

    #[test]
    fn a_proof_is_good_once_and_for_one_side() {
        let one = secret("0123456789abcdef").expect("long enough");
        let (mut calling, _) = one.call().expect("random");
        let (called, challenge) = one.answer(calling.mine).expect("random");
        let Some(Ok(Next::Send(Frame::Proof(proof)))) = calling.hear(&one, &challenge) else {
            panic!("no proof");
        };
        // Sent back by somebody who does not have the secret.
        assert!(matches!(
            calling.hear(&one, &Frame::Proof(proof)),
            Some(Err(_))
        ));
        // Said again to the next connection.
        let (again, _) = one.answer(calling.mine).expect("random");
        assert!(again.check(&one, &proof).is_none());
        assert!(called.check(&one, &proof).is_some());
        // A second challenge is no part of it.
        assert_eq!(calling.hear(&one, &challenge), None);
    }

    #[test]
    fn a_secret_is_long_and_is_kept() {
        let check = |text: &str, expect: &str| {
            let error = secret(text).expect_err("refused").to_string();
            assert!(error.contains(expect), "{error}");
        };
        check("too short\n", "a secret of 9 bytes, allowed are 16 to 4096");
        check("", "a secret of 0 bytes");
        check(&"x".repeat(5000), "a secret of 5000 bytes");
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(b"0123456789abcdef").expect("written");
        let open = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(file.path(), open).expect("ours");
        let error = Secret::read(file.path()).expect_err("refused").to_string();
        assert!(error.contains("mode 644"), "{error}");
        let shown = format!("{:?}", secret("0123456789abcdef"));
        assert_eq!(shown, "Ok(Secret(..))");
    }
}
