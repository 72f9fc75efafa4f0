//! Encryption of the stored bytes of blocks: AES-256 in XTS mode (IEEE 1619) with the volume's data key, which each target has
//! in wrapped form (RFC 3394). Reads key files, and does no other I/O.
//!
//! The key that wraps is derived from the key file and the volume's identifier by BLAKE3. The tweak of a block has its place at
//! the targets and its generation, each as 64 bits, little endian: no two writes of a volume have the same one.

use crate::error::{BlkError, Result};
use crate::geometry::Id;
use aes::Aes256;
use aes_kw::{KeyInit as _, KwAes256};
use std::fmt;
use std::path::{Path, PathBuf};
use xgvmi_daemon::Secret;
use xts_mode::{Array, Xts128};

/// Purpose of the key that is derived from a key file.
const CONTEXT: &str = "xgvmi 2026 block storage encryption at rest";
/// What the key that wraps is derived for, with the identifier of the volume.
const WRAPS: &[u8] = b"wrapped data key of volume ";
/// Bytes of a data key: one for the blocks, one for the tweaks.
const KEY: usize = 64;
/// Bytes of a wrapped one.
pub(crate) const WRAPPED: usize = KEY + aes_kw::IV_LEN;
/// Shortest text that XTS encrypts.
pub(crate) const SEALED_MIN: usize = 16;
/// The algorithm of data and wrapping, as superblocks name it.
pub(crate) const ALGORITHM: u32 = 1;
/// What no write of a block has: zeros that are encrypted with it show which data key a target has.
const NOWHERE: (u64, u64) = (u64::MAX, u64::MAX);

/// A file with a key, as opened volumes use it. `Debug` does not print the key.
#[derive(Clone)]
pub struct KeyFile {
    path: PathBuf,
    secret: Secret,
}

impl fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyFile").field(&self.path).finish()
    }
}

/// The data key of a volume in the form in which its targets have it, which only the key file opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wrapping {
    /// Grows with each change.
    pub revision: u64,
    /// The wrapped key.
    pub(crate) wrapped: [u8; WRAPPED],
    /// Differs with the data key.
    pub(crate) check: [u8; SEALED_MIN],
}

/// The data key of a volume, ready for use.
pub(crate) struct Cipher {
    key: DataKey,
    xts: Xts128<Aes256>,
}

/// Is overwritten when it is dropped.
struct DataKey([u8; KEY]);

impl Drop for DataKey {
    fn drop(&mut self) {
        self.0.fill(0);
        // The compiler must not leave the store out.
        std::hint::black_box(&mut self.0);
    }
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cipher(..)")
    }
}

/// What encrypts or decrypts one generation of a block.
#[derive(Debug, Clone, Copy)]
pub struct Seal<'a> {
    pub(crate) cipher: &'a Cipher,
    /// Number of the block at the targets.
    pub(crate) place: u64,
    pub(crate) generation: u64,
}

impl KeyFile {
    /// Reads a key. The file has 16 to 4,096 bytes, without access for other users.
    ///
    /// # Errors
    /// The file cannot be read, or is no key.
    pub fn read(path: &Path) -> Result<Self> {
        let secret = Secret::read_as(path, "key", CONTEXT);
        Ok(Self {
            secret: secret.map_err(|error| BlkError::Argument(error.to_string()))?,
            path: path.to_owned(),
        })
    }

    fn wraps(&self, volume: Id) -> KwAes256 {
        let key = self.secret.derive(&[WRAPS, &volume.0].concat());
        KwAes256::new(&Array(key))
    }

    /// Makes the data key of a new volume.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn new_wrapping(&self, volume: Id) -> Result<Wrapping> {
        let key = xgvmi_daemon::random_bytes();
        let key = key.map_err(|error| BlkError::io("random bytes", error))?;
        Cipher::new(DataKey(key)).wrap(self, volume, 1)
    }
}

impl Cipher {
    fn new(key: DataKey) -> Self {
        let (mut first, mut second) = ([0; KEY / 2], [0; KEY / 2]);
        first.copy_from_slice(&key.0[..KEY / 2]);
        second.copy_from_slice(&key.0[KEY / 2..]);
        Self {
            xts: Xts128::new(Aes256::new(&Array(first)), Aes256::new(&Array(second))),
            key,
        }
    }

    /// Unwraps the data key.
    ///
    /// # Errors
    /// It was wrapped with another key, or for another volume.
    pub(crate) fn open(wrapping: &Wrapping, file: &KeyFile, volume: Id) -> Result<Self> {
        let mut key = DataKey([0; KEY]);
        let opened = file.wraps(volume).unwrap_key(&wrapping.wrapped, &mut key.0);
        let cipher = opened.is_ok().then(|| Self::new(key));
        let fits = cipher.filter(|cipher| cipher.check() == wrapping.check);
        fits.ok_or_else(|| {
            BlkError::Argument(format!(
                "the key in {} is not that of volume {volume} (revision {}): give the file of its creation, or of the last \
                 rotate-key",
                file.path.display(),
                wrapping.revision
            ))
        })
    }

    /// Wraps the data key.
    ///
    /// # Errors
    /// None that can be: the lengths fit.
    pub(crate) fn wrap(&self, file: &KeyFile, volume: Id, revision: u64) -> Result<Wrapping> {
        let mut wrapped = [0; WRAPPED];
        let done = file.wraps(volume).wrap_key(&self.key.0, &mut wrapped);
        done.map_err(|error| BlkError::Argument(format!("the data key: {error}")))?;
        Ok(Wrapping {
            revision,
            wrapped,
            check: self.check(),
        })
    }

    fn check(&self) -> [u8; SEALED_MIN] {
        let mut check = [0; SEALED_MIN];
        self.xts.encrypt_sector(&mut check, tweak(NOWHERE));
        check
    }
}

impl Seal<'_> {
    /// Encrypts at least [`SEALED_MIN`] bytes in place.
    pub(crate) fn encrypt(&self, bytes: &mut [u8]) {
        let tweak = tweak((self.place, self.generation));
        self.cipher.xts.encrypt_sector(bytes, tweak);
    }

    /// Decrypts at least [`SEALED_MIN`] bytes in place.
    pub(crate) fn decrypt(&self, bytes: &mut [u8]) {
        let tweak = tweak((self.place, self.generation));
        self.cipher.xts.decrypt_sector(bytes, tweak);
    }
}

fn tweak((place, generation): (u64, u64)) -> Array<u8, aes::cipher::consts::U16> {
    Array((u128::from(generation) << 64 | u128::from(place)).to_le_bytes())
}

/// The wrapping that counts: the newest one, as those targets tell that know it best.
pub(crate) fn newest(known: impl Iterator<Item = (u64, Option<Wrapping>)>) -> Option<Wrapping> {
    let known = known.filter_map(|(epoch, wrapping)| Some((epoch, wrapping?)));
    let newest = known.max_by_key(|(epoch, wrapping)| (*epoch, wrapping.revision))?;
    Some(newest.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16);
        digits.chunks(2).map(|pair| byte(pair).unwrap()).collect()
    }

    /// Vector 10 of IEEE 1619-2007, annex B: AES-256, a data unit of 512 bytes. Its first and last bytes are here.
    #[test]
    fn xts_vector_10_of_ieee_1619() {
        let key = "2718281828459045235360287471352662497757247093699959574966967627\
                   3141592653589793238462643383279502884197169399375105820974944592";
        let cipher = Cipher::new(DataKey(hex(key).try_into().unwrap()));
        let mut unit: Vec<u8> = (0..512u32).map(|at| at.to_le_bytes()[0]).collect();
        let plain = unit.clone();
        let seal = Seal {
            cipher: &cipher,
            place: 0xff,
            generation: 0,
        };
        seal.encrypt(&mut unit);
        assert_eq!(
            unit[..32],
            hex("1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b")
        );
        assert_eq!(unit[496..], hex("c4f36ffda9fcea70b9c6e693e148c151"));
        seal.decrypt(&mut unit);
        assert_eq!(unit, plain);
    }

    /// Vector 15 of IEEE 1619-2007, annex B: ciphertext stealing, with AES-128.
    #[test]
    fn xts_vector_15_of_ieee_1619() {
        let key = |from: u8| {
            let mut key = [0; 16];
            for (byte, at) in key.iter_mut().zip(0..) {
                *byte = from - at;
            }
            aes::Aes128::new(&Array(key))
        };
        let xts = Xts128::new(key(0xff), key(0xbf));
        let mut unit: Vec<u8> = (0..17).collect();
        xts.encrypt_sector(&mut unit, tweak((0x12_3456_789a, 0)));
        assert_eq!(unit, hex("6c1625db4671522d3d7599601de7ca09ed"));
    }

    /// RFC 3394, 4.6: 256 bits of key data with a 256-bit key.
    #[test]
    fn key_wrap_vector_of_rfc_3394() {
        let mut wrapping = [0; 32];
        for (byte, at) in wrapping.iter_mut().zip(0..) {
            *byte = at;
        }
        let key = hex("00112233445566778899AABBCCDDEEFF000102030405060708090A0B0C0D0E0F");
        let expect =
            hex("28C9F404C4B810F4CBCCB35CFB87F8263F5786E2D80ED326CBC7F0E71A99F43BFB988B9B7A02DD21");
        let wraps = KwAes256::new(&Array(wrapping));
        let mut wrapped = [0; 40];
        assert_eq!(wraps.wrap_key(&key, &mut wrapped).unwrap(), expect);
        let mut back = [0; 32];
        assert_eq!(wraps.unwrap_key(&wrapped, &mut back).unwrap(), key);
    }
}
