//! A secret that the processes of a site share. Each side proves possession of the secret without sending it. Both
//! derive from it the keys that authenticate every later frame of the connection.
//!
//! ```text
//! caller                                          service
//!   |---- OPEN, a random number ------------------>|
//!   |<--- CHALLENGE, another random number --------|
//!   |---- PROOF: MAC(secret, "caller", both) ----->|   refused unless the service computes the same
//!   |<--- PROOF: MAC(secret, "service", both) -----|   given up unless the caller computes the same
//! ```
//!
//! The caller proves first: an unauthenticated caller obtains no material for an offline guess. The MAC is the keyed
//! mode of BLAKE3. Comparisons take constant time. Each direction has its own key, derived from the same secret and the
//! same two numbers ([`Seal`]).

use super::error::{DaemonError, Result};
use super::random::random_bytes;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Length of a nonce and of a proof in bytes.
pub(crate) const WORD: usize = 32;

/// Length of a frame's seal in bytes.
pub(crate) const SEAL: usize = 16;

/// The longest file with a secret: a secret with white space around it.
const FILE_MAX: u64 = 2 * xgvmi_pool::Secret::BYTES_MAX as u64;

/// A random number that is used once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nonce(pub(crate) [u8; WORD]);

/// A MAC over two nonces. Only a holder of the secret can compute it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Proof(pub(crate) [u8; WORD]);

/// The prover. A proof of one side is invalid for the other side.
#[derive(Debug, Clone, Copy)]
enum Side {
    Caller,
    Service,
}

/// A secret, reduced to the key for one purpose. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; WORD]);

/// The seals of both directions of an authenticated connection.
#[derive(Debug)]
pub(crate) struct Seals {
    pub(crate) send: Seal,
    pub(crate) receive: Seal,
}

/// Authenticates the frames of one direction and their order. A frame that was modified, dropped, repeated, moved or
/// taken from another connection has a different seal.
pub(crate) struct Seal {
    key: [u8; WORD],
    next: u64,
}

/// A caller that has sent its nonce.
#[derive(Debug)]
pub(crate) struct Calling {
    pub(crate) mine: Nonce,
    theirs: Option<Nonce>,
}

/// A service that has sent its own nonce.
#[derive(Debug)]
pub(crate) struct Called {
    theirs: Nonce,
    pub(crate) mine: Nonce,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seal(.., {})", self.next)
    }
}

impl Secret {
    /// Reads the secret from a file and strips surrounding white space. `context` is its purpose: another purpose
    /// derives another key from the same file.
    ///
    /// # Errors
    /// The file is unreadable or no regular file, other users can access it (mode bits `o`), or it has fewer than 16 or
    /// more than 4,096 bytes. A symbolic link is followed, and its target is checked.
    pub fn read(path: &Path, context: &str) -> Result<Self> {
        Self::read_as(path, "secret", context)
    }

    /// As [`Secret::read`]. `what` names the secret in errors.
    ///
    /// # Errors
    /// As [`Secret::read`].
    pub fn read_as(path: &Path, what: &str, context: &str) -> Result<Self> {
        let text = read_private(path, what, FILE_MAX)?;
        let none = |error: &dyn fmt::Display| {
            DaemonError::Options(format!(
                "the {what} in {} is none: {error} (`openssl rand -hex 32` makes a good one)",
                path.display()
            ))
        };
        let secret = xgvmi_pool::Secret::from_text(&text).map_err(|error| none(&error))?;
        Ok(Self(secret.derive_key(context)))
    }

    /// A key for one of the things that the purpose has.
    #[must_use]
    pub fn derive(&self, thing: &[u8]) -> [u8; WORD] {
        *blake3::keyed_hash(&self.0, thing).as_bytes()
    }

    /// Another secret of the same holder, for one of the things that the purpose has.
    #[must_use]
    pub fn derived(&self, thing: &[u8]) -> Self {
        Self(self.derive(thing))
    }

    /// Starts the handshake as a caller.
    pub(crate) fn call() -> io::Result<Calling> {
        let mine = Nonce::random()?;
        Ok(Calling { mine, theirs: None })
    }

    /// Starts the handshake as a service.
    pub(crate) fn answer(theirs: Nonce) -> io::Result<Called> {
        let mine = Nonce::random()?;
        Ok(Called { theirs, mine })
    }

    fn prove(&self, side: Side, caller: Nonce, service: Nonce) -> Proof {
        let side: &[u8] = match side {
            Side::Caller => b"caller ",
            Side::Service => b"service",
        };
        Proof(self.mac(side, caller, service))
    }

    fn seal(&self, from: Side, caller: Nonce, service: Nonce) -> Seal {
        let from: &[u8] = match from {
            Side::Caller => b"frames of the caller",
            Side::Service => b"frames of the service",
        };
        Seal {
            key: self.mac(from, caller, service),
            next: 0,
        }
    }

    fn mac(&self, purpose: &[u8], caller: Nonce, service: Nonce) -> [u8; WORD] {
        let text = [purpose, &caller.0, &service.0].concat();
        *blake3::keyed_hash(&self.0, &text).as_bytes()
    }
}

impl Calling {
    /// The proof for a challenge; `None` for a second challenge.
    pub(crate) fn challenged(&mut self, secret: &Secret, theirs: Nonce) -> Option<Proof> {
        match self.theirs.replace(theirs) {
            None => Some(secret.prove(Side::Caller, self.mine, theirs)),
            Some(_) => None,
        }
    }

    /// The seals, if the service has proved the secret.
    pub(crate) fn check(&self, secret: &Secret, proof: &Proof) -> Option<Seals> {
        let theirs = self.theirs?;
        let expect = secret.prove(Side::Service, self.mine, theirs);
        proof.is(&expect).then(|| Seals {
            send: secret.seal(Side::Caller, self.mine, theirs),
            receive: secret.seal(Side::Service, self.mine, theirs),
        })
    }
}

impl Called {
    /// The service's own proof and the seals, if the caller has proved the secret.
    pub(crate) fn check(&self, secret: &Secret, proof: &Proof) -> Option<(Proof, Seals)> {
        let expect = secret.prove(Side::Caller, self.theirs, self.mine);
        proof.is(&expect).then(|| {
            let answer = secret.prove(Side::Service, self.theirs, self.mine);
            let seals = Seals {
                send: secret.seal(Side::Service, self.theirs, self.mine),
                receive: secret.seal(Side::Caller, self.theirs, self.mine),
            };
            (answer, seals)
        })
    }
}

impl Seal {
    /// The seal of the next frame.
    pub(crate) fn of(&mut self, header: &[u8], body: &[u8]) -> [u8; SEAL] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&self.next.to_le_bytes());
        hasher.update(header);
        hasher.update(body);
        // An overflow would take centuries at one frame per nanosecond.
        self.next += 1;
        let mut seal = [0; SEAL];
        seal.copy_from_slice(&hasher.finalize().as_bytes()[..SEAL]);
        seal
    }

    /// Whether `seal` is the seal of the next frame.
    pub(crate) fn check(&mut self, header: &[u8], body: &[u8], seal: &[u8]) -> bool {
        let expect = self.of(header, body);
        let mut padded = ([0; WORD], [0; WORD]);
        if seal.len() != SEAL {
            return false;
        }
        padded.0[..SEAL].copy_from_slice(seal);
        padded.1[..SEAL].copy_from_slice(&expect);
        // blake3's comparison takes constant time.
        blake3::Hash::from_bytes(padded.0) == blake3::Hash::from_bytes(padded.1)
    }
}

impl Nonce {
    fn random() -> io::Result<Self> {
        random_bytes().map(Self)
    }
}

impl Proof {
    fn is(&self, other: &Self) -> bool {
        blake3::Hash::from_bytes(self.0) == blake3::Hash::from_bytes(other.0)
    }
}

/// Reads a file that other users must not see: a secret, or a private key. `what` names its contents in errors.
///
/// # Errors
/// The file is unreadable or no regular file, other users can access it (mode bits `o`), or it has more than `most` bytes.
/// A symbolic link is followed, and its target is checked.
pub fn read_private(path: &Path, what: &str, most: u64) -> Result<Vec<u8>> {
    let refused =
        |why: String| DaemonError::Options(format!("the {what} in {} {why}", path.display()));
    let unread = |error: io::Error| {
        let path = path.display();
        DaemonError::Options(format!("cannot read the {what} in {path}: {error}"))
    };
    // A daemon also reads it while it serves: a FIFO must not stop it, and a device must not fill its memory.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(unread)?;
    // The checks are of the file that is read, whatever takes its place meanwhile.
    let metadata = file.metadata().map_err(unread)?;
    if !metadata.is_file() {
        return Err(refused("is no regular file".to_owned()));
    }
    let mode = metadata.permissions().mode();
    if mode & 0o007 != 0 {
        return Err(refused(format!(
            "is open to everybody (mode {:03o}): chmod o= it",
            mode & 0o777
        )));
    }
    if metadata.len() > most {
        return Err(refused(format!(
            "is none: a file of {} bytes, the most is {most}",
            metadata.len()
        )));
    }
    let mut text = Vec::new();
    file.take(most).read_to_end(&mut text).map_err(unread)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn secret(text: &str) -> Result<Secret> {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(text.as_bytes()).expect("written");
        Secret::read(file.path(), "tests")
    }

    fn one() -> Secret {
        secret("0123456789abcdef\n").expect("long enough")
    }

    /// The seals of both ends, if each accepts the other.
    fn meet(caller: &Secret, service: &Secret) -> Option<(Seals, Seals)> {
        let mut calling = Secret::call().expect("random");
        let called = Secret::answer(calling.mine).expect("random");
        let proof = calling.challenged(caller, called.mine)?;
        let (answer, theirs) = called.check(service, &proof)?;
        Some((calling.check(caller, &answer)?, theirs))
    }

    #[test]
    fn owners_of_the_same_secret_trust_each_other_and_nobody_else() {
        let same = secret("0123456789abcdef").expect("long enough");
        let other = secret("0123456789abcdeF").expect("long enough");
        assert!(meet(&one(), &same).is_some());
        assert!(meet(&one(), &other).is_none());
    }

    #[test]
    fn a_proof_is_good_once_and_for_one_side() {
        let one = one();
        let mut calling = Secret::call().expect("random");
        let called = Secret::answer(calling.mine).expect("random");
        let proof = calling.challenged(&one, called.mine).expect("first");
        // Reflected by a peer without the secret.
        assert!(calling.check(&one, &proof).is_none());
        // Replayed on the next connection.
        let again = Secret::answer(calling.mine).expect("random");
        assert!(again.check(&one, &proof).is_none());
        assert!(called.check(&one, &proof).is_some());
        assert!(
            calling.challenged(&one, again.mine).is_none(),
            "a second challenge"
        );
    }

    #[test]
    fn a_seal_belongs_to_one_frame_in_one_place_of_one_direction() {
        let (mut caller, mut service) = meet(&one(), &one()).expect("the same secret");
        let first = caller.send.of(b"head", b"body");
        let second = caller.send.of(b"head", b"body");
        assert_ne!(first, second, "the same frame again");
        assert!(
            !service.send.check(b"head", b"body", &first),
            "the other direction"
        );
        assert!(service.receive.check(b"head", b"body", &first));
        assert!(!service.receive.check(b"head", b"body", &first), "repeated");
        let fresh = || {
            let (mut caller, service) = meet(&one(), &one()).expect("the same secret");
            (caller.send.of(b"head", b"body"), service.receive)
        };
        let (seal, mut receive) = fresh();
        assert!(!receive.check(b"heed", b"body", &seal));
        let (seal, mut receive) = fresh();
        assert!(!receive.check(b"head", b"bode", &seal));
        let (seal, mut receive) = fresh();
        assert!(!receive.check(b"head", b"body", &seal[1..]));
        let (_, mut receive) = fresh();
        assert!(
            !receive.check(b"head", b"body", &first),
            "another connection"
        );
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Proofs and seals of fixed numbers. The answers come from an implementation of BLAKE3 in Python that follows section
    /// 2 of its specification and shares no code with the crate.
    #[test]
    fn known_answers() {
        let count = |from: u8| {
            let mut bytes = [from; 32];
            for (byte, at) in bytes.iter_mut().zip(0_u8..) {
                *byte += at;
            }
            Nonce(bytes)
        };
        let (caller, service) = (count(0), count(32));
        let one = one();
        assert_eq!(
            hex(&one.0),
            "a61d5b7cdfd0877404c3048d05aecbfa924b1082f3bd9d65e6349c0201cfc94f"
        );
        assert_eq!(
            hex(&one.prove(Side::Caller, caller, service).0),
            "e30ab7522d536339d7e9087a24b490bfb1a15805b605d8843d644ba623a195c9"
        );
        assert_eq!(
            hex(&one.prove(Side::Service, caller, service).0),
            "c69331746363eb54fe0c2f6d3b98d09328bbaf5c4ea7a313bc74ebccc9ac9ba3"
        );
        let service_seal = one.seal(Side::Service, caller, service);
        assert_eq!(
            hex(&service_seal.key),
            "7284ee4440d0a14a4532776c47ca598615572dbef3efc097d3a57823cbe2def1"
        );
        let mut seal = one.seal(Side::Caller, caller, service);
        assert_eq!(
            hex(&seal.key),
            "488af797d1d8120e52443dca95f3a66cad095b8d21e45b82c1dec7c7872ed665"
        );
        for expect in [
            "e2e3b96c4ae024ff758bfa75242d34db",
            "52659bd3860a089a664873a7ca18634a",
        ] {
            assert_eq!(hex(&seal.of(b"head", b"body")), expect);
        }
    }

    #[test]
    fn only_a_regular_file_of_few_is_a_secret() {
        let place = tempfile::tempdir().expect("a directory");
        let path = |name: &str| place.path().join(name);
        let refused = |name: &str, expect: &str| {
            let error = Secret::read(&path(name), "tests").unwrap_err().to_string();
            assert!(error.contains(expect) && error.contains(name), "{error}");
        };
        let fifo = std::ffi::CString::new(path("fifo").to_str().expect("UTF-8")).expect("no zero");
        // SAFETY: a path that ends with a zero.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        refused("fifo", "is no regular file");
        std::os::unix::fs::symlink("/dev/zero", path("zeros")).expect("a link");
        refused("zeros", "is no regular file");
        refused("absent", "cannot read the secret");
        // The mode of a link's target counts.
        std::fs::write(path("open"), "0123456789abcdef").expect("written");
        let mode = |mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(path("open"), mode).expect("ours");
        };
        std::os::unix::fs::symlink(path("open"), path("link")).expect("a link");
        mode(0o604);
        refused("link", "is open to everybody (mode 604)");
        mode(0o640);
        assert_eq!(Secret::read(&path("link"), "tests").expect("read"), one());
    }

    #[test]
    fn a_secret_is_long_and_is_kept() {
        let check = |text: &str, expect: &str| {
            let error = secret(text).expect_err("refused").to_string();
            assert!(error.contains(expect), "{error}");
        };
        check("too short\n", "a secret of 9 bytes instead of 16 to 4096");
        check("", "a secret of 0 bytes");
        check(&"x".repeat(5000), "a secret of 5000 bytes");
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(b"0123456789abcdef").expect("written");
        let open = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(file.path(), open).expect("ours");
        let error = Secret::read(file.path(), "tests")
            .expect_err("refused")
            .to_string();
        assert!(error.contains("mode 644"), "{error}");
        check(&"x".repeat(9000), "a file of 9000 bytes");
        let shown = format!("{:?}", secret("0123456789abcdef"));
        assert_eq!(shown, "Ok(Secret(..))");
    }
}
