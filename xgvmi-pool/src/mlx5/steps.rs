//! The single steps in the life of a cross-function key, for each common type of key. Programs
//! measure with them the time that a pool saves. The pool itself does not use them.
//!
//! A step that creates an object returns a guard. `end` is the step that destroys the object.
//! Dropping the guard also destroys it, for the case of an error in between.

use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;

use mlx5_prm::mkey::{self, KLM_BYTES, Klm, access_mode};
use mlx5_prm::{Field, cmd};
use mlx5dv_sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, Mlx5Lib, ibv_mr,
    mlx5dv_devx_obj, mlx5dv_devx_umem,
};

use super::command::{self, Mailbox};
use super::device::domain_number;
use super::function::Function;
use super::mkey as pooled;
use crate::device::MkeySpec;
use crate::error::DeviceError;
use crate::key::{AccessKey, Lkey, Mkey, MkeyIndex, Tag, VirtAddr};

/// Offset of the key's context in the command.
const CONTEXT_AT: u32 = 0x10;
/// The size of a key's list is a multiple of four entries.
const LIST_ALIGN: u32 = 4;
/// Size of the page of an MTT entry, as a power of two; larger pages consist of several.
const PAGE_LOG: u32 = 12;
/// Bytes of an MTT entry.
const MTT_BYTES: u64 = 8;

/// The steps on one function. Any thread that may use the function may use them.
#[derive(Debug)]
pub struct Steps<'f> {
    function: &'f Function,
    pdn: u32,
}

/// Memory that the caller keeps mapped while guards of it exist.
#[derive(Clone, Copy, Debug)]
pub struct Span<'m> {
    addr: VirtAddr,
    len: usize,
    memory: PhantomData<&'m [u8]>,
}

impl<'m> Span<'m> {
    /// The memory of a slice.
    #[must_use]
    pub fn of(memory: &'m mut [u8]) -> Self {
        Self {
            addr: VirtAddr::new(memory.as_mut_ptr() as u64),
            len: memory.len(),
            memory: PhantomData,
        }
    }

    /// Memory that is no slice of this program, such as a C program's.
    ///
    /// # Safety
    /// The range is mapped and stays mapped while guards of the span exist.
    #[must_use]
    pub const unsafe fn from_raw(addr: VirtAddr, len: usize) -> Self {
        Self {
            addr,
            len,
            memory: PhantomData,
        }
    }

    /// First byte.
    #[must_use]
    pub const fn addr(&self) -> VirtAddr {
        self.addr
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if the length is zero.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Rights of other functions to registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// They read it. The memory may be mapped read-only.
    Read,
    /// They read and write it.
    ReadWrite,
}

impl Rights {
    const fn access(self) -> u32 {
        match self {
            Self::Read => IBV_ACCESS_REMOTE_READ,
            Self::ReadWrite => {
                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ
            }
        }
    }
}

/// A memory region of verbs (`ibv_reg_mr`).
#[derive(Debug)]
pub struct Registration<'m> {
    lib: &'m Mlx5Lib,
    /// `None` after its end.
    mr: Option<NonNull<ibv_mr>>,
    lkey: Lkey,
    span: Span<'m>,
}

/// A DEVX umem.
#[derive(Debug)]
pub struct Umem<'m> {
    lib: &'m Mlx5Lib,
    /// `None` after its end.
    umem: Option<NonNull<mlx5dv_devx_umem>>,
    id: u32,
    span: Span<'m>,
}

/// An mkey created by a command.
#[derive(Debug)]
pub struct Key<'s> {
    lib: &'s Mlx5Lib,
    index: MkeyIndex,
    /// `None` after its end.
    made: Option<NonNull<mlx5dv_devx_obj>>,
}

// SAFETY: libibverbs' object, safe to use from any thread; the guard has no other state.
unsafe impl Send for Registration<'_> {}
// SAFETY: libmlx5's object, safe to use from any thread; the guard has no other state.
unsafe impl Send for Key<'_> {}

impl<'f> Steps<'f> {
    /// The steps on the function.
    ///
    /// # Errors
    /// If libmlx5 does not return the number of the function's protection domain.
    pub fn new(function: &'f Function) -> Result<Self, DeviceError> {
        let (lib, _, pd) = function.parts();
        // SAFETY: the function's own domain, created by this library.
        let pdn = unsafe { domain_number(lib, pd) }?;
        Ok(Self { function, pdn })
    }

    /// Registers memory (`ibv_reg_mr`), for local and remote reads and writes.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn register<'m>(&'m self, span: Span<'m>) -> Result<Registration<'m>, DeviceError> {
        self.register_with(span, Rights::ReadWrite)
    }

    /// As [`Steps::register`], with these rights. Writes through a key over memory that may only be read fail.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn register_with<'m>(
        &'m self,
        span: Span<'m>,
        rights: Rights,
    ) -> Result<Registration<'m>, DeviceError> {
        let (lib, _, pd) = self.function.parts();
        let access = rights.access();
        let addr = span.addr.get();
        // SAFETY: the memory outlives the guard, which ends the registration.
        let mr =
            unsafe { lib.ibv_reg_mr_iova2(pd.as_ptr(), addr as *mut _, span.len, addr, access) };
        let mr = NonNull::new(mr).ok_or_else(|| refused("ibv_reg_mr", span.len, errno()))?;
        Ok(Registration {
            lib,
            mr: Some(mr),
            // SAFETY: just registered.
            lkey: Lkey::from_raw(unsafe { mr.as_ref() }.lkey),
            span,
        })
    }

    /// Registers memory as a umem, for local and remote reads and writes.
    ///
    /// # Errors
    /// If the kernel or the adapter refuses.
    pub fn register_umem<'m>(&'m self, span: Span<'m>) -> Result<Umem<'m>, DeviceError> {
        let (lib, context, _) = self.function.parts();
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
        let addr = span.addr.get() as *mut _;
        // SAFETY: the memory outlives the guard, which ends the registration; the context is open.
        let umem = unsafe { lib.mlx5dv_devx_umem_reg(context.as_ptr(), addr, span.len, access) };
        let call = "mlx5dv_devx_umem_reg";
        let umem = NonNull::new(umem).ok_or_else(|| refused(call, span.len, errno()))?;
        Ok(Umem {
            lib,
            umem: Some(umem),
            // SAFETY: just registered.
            id: unsafe { umem.as_ref() }.umem_id,
            span,
        })
    }

    /// Creates a direct (MTT) key over a umem.
    ///
    /// # Errors
    /// If the kernel or the adapter refuses.
    pub fn create_over_umem<'s>(&'s self, umem: &'s Umem<'_>) -> Result<Key<'s>, DeviceError> {
        let mut input = self.context(access_mode::MTT, umem.span);
        // The first page and the last one may be partial.
        let pages = ((umem.span.len as u64) >> PAGE_LOG) + 2;
        let words = pages.div_ceil(KLM_BYTES as u64 / MTT_BYTES);
        input.set(mkey::TRANSLATIONS_OCTWORDS.within(CONTEXT_AT), words);
        input.set(mkey::LOG_ENTITY_SIZE.within(CONTEXT_AT), PAGE_LOG);
        input.set(mkey::create::UMEM_VALID, true);
        input.set(mkey::create::UMEM_ID, umem.id);
        self.create(&input, "a key over a umem")
    }

    /// Creates a KSM key over a registration, as UCX does for each exported buffer without its
    /// pool.
    ///
    /// # Errors
    /// If the kernel or the adapter refuses.
    pub fn create_ksm<'s>(&'s self, behind: &'s Registration<'_>) -> Result<Key<'s>, DeviceError> {
        let mut input = self.context(access_mode::KSM, behind.span);
        let entity = (behind.span.len as u64).next_power_of_two();
        input.set(mkey::LOG_ENTITY_SIZE.within(CONTEXT_AT), entity.ilog2());
        input.set(mkey::TRANSLATIONS_OCTWORDS.within(CONTEXT_AT), LIST_ALIGN);
        input.set(mkey::create::TRANSLATIONS_OCTWORDS_ACTUAL, 1_u32);
        let entry = Klm {
            byte_count: 0,
            mkey: behind.lkey.raw(),
            address: behind.span.addr.get(),
        };
        input.put(mkey::CREATE_LIST_AT, &entry.to_bytes());
        self.create(&input, "a KSM key")
    }

    /// Creates a free key with space for `klm_entries` KLM entries, for work requests to bind. A
    /// key of the pool is such a key before it is opened to other functions.
    ///
    /// # Errors
    /// If the kernel or the adapter refuses.
    pub fn create_umr(&self, klm_entries: u32) -> Result<Key<'_>, DeviceError> {
        let spec = MkeySpec {
            klm_entries,
            access_key: AccessKey::UCX_COMPATIBLE,
        };
        self.create(
            &pooled::create_mailbox(self.pdn, (&spec, false)),
            "a UMR key",
        )
    }

    /// Opens a key to functions that present the access key (ALLOW_OTHER_VHCA_ACCESS).
    ///
    /// # Errors
    /// If the kernel or the adapter refuses.
    pub fn allow(&self, key: &Key<'_>, access_key: &AccessKey) -> Result<(), DeviceError> {
        let (lib, context, _) = self.function.parts();
        // SAFETY: the function is open.
        unsafe { pooled::allow(lib, context, key.index, access_key) }
    }

    /// The context of a key that covers the span under its own addresses.
    fn context(&self, mode: u8, span: Span<'_>) -> Mailbox<CREATE_BYTES> {
        let mut input = Mailbox::new(cmd::opcode::CREATE_MKEY);
        input.set(mkey::ACCESS_MODE_1_0.within(CONTEXT_AT), mode);
        let rights: [Field; 4] = [
            mkey::REMOTE_WRITE,
            mkey::REMOTE_READ,
            mkey::LOCAL_WRITE,
            mkey::LOCAL_READ,
        ];
        for right in rights {
            input.set(right.within(CONTEXT_AT), true);
        }
        input.set(mkey::QPN.within(CONTEXT_AT), mkey::QPN_ANY);
        input.set(mkey::PD.within(CONTEXT_AT), self.pdn);
        input.set(mkey::START_ADDR.within(CONTEXT_AT), span.addr.get());
        input.set(mkey::LEN.within(CONTEXT_AT), span.len as u64);
        input
    }

    fn create<const BYTES: usize>(
        &self,
        input: &Mailbox<BYTES>,
        what: &'static str,
    ) -> Result<Key<'_>, DeviceError> {
        let (lib, context, _) = self.function.parts();
        let object = || what.to_owned();
        // SAFETY: the function is open.
        let (made, answer): (_, [u8; cmd::HEADER_BYTES]) =
            unsafe { command::create(lib, context, "CREATE_MKEY", object, input) }?;
        let index = MkeyIndex::new(cmd::OBJECT_NUMBER.get32(&answer));
        let index = index.expect("the field has 24 bits");
        Ok(Key {
            lib,
            index,
            made: Some(made),
        })
    }
}

/// `CREATE_MKEY` with a list of up to four entries.
const CREATE_BYTES: usize = mkey::CREATE_LIST_AT + LIST_ALIGN as usize * KLM_BYTES;

impl Registration<'_> {
    /// The registered memory.
    #[must_use]
    pub const fn span(&self) -> &Span<'_> {
        &self.span
    }

    /// The key of the registration.
    #[must_use]
    pub const fn lkey(&self) -> Lkey {
        self.lkey
    }

    /// Deregisters the memory (`ibv_dereg_mr`).
    ///
    /// # Errors
    /// If the kernel refuses. The registration then remains until the process ends.
    pub fn end(mut self) -> Result<(), DeviceError> {
        self.deregister()
    }

    fn deregister(&mut self) -> Result<(), DeviceError> {
        let Some(mr) = self.mr.take() else {
            return Ok(());
        };
        // SAFETY: registered by `register`, and taken out above: this is its end.
        match unsafe { self.lib.ibv_dereg_mr(mr.as_ptr()) } {
            0 => Ok(()),
            errno => Err(refused("ibv_dereg_mr", self.span.len, errno)),
        }
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        // The caller reports the error in between, not this one.
        let _left = self.deregister();
    }
}

impl Umem<'_> {
    /// Deregisters the umem.
    ///
    /// # Errors
    /// If the kernel refuses. The umem then remains until the process ends.
    pub fn end(mut self) -> Result<(), DeviceError> {
        self.deregister()
    }

    fn deregister(&mut self) -> Result<(), DeviceError> {
        let Some(umem) = self.umem.take() else {
            return Ok(());
        };
        // SAFETY: registered by `register_umem`, and taken out above: this is its end.
        match unsafe { self.lib.mlx5dv_devx_umem_dereg(umem.as_ptr()) } {
            0 => Ok(()),
            errno => Err(refused("mlx5dv_devx_umem_dereg", self.span.len, errno)),
        }
    }
}

impl Drop for Umem<'_> {
    fn drop(&mut self) {
        // As above: the caller reports the error in between.
        let _left = self.deregister();
    }
}

impl Key<'_> {
    /// The key, without a tag.
    #[must_use]
    pub const fn mkey(&self) -> Mkey {
        Mkey::new(self.index, Tag::ZERO)
    }

    /// Destroys the key.
    ///
    /// # Errors
    /// If the kernel or the adapter refuses. The key then remains until the process ends.
    pub fn end(mut self) -> Result<(), DeviceError> {
        self.destroy()
    }

    fn destroy(&mut self) -> Result<(), DeviceError> {
        let Some(made) = self.made.take() else {
            return Ok(());
        };
        let object = || format!("{:?}", self.index);
        // SAFETY: created by `create`, and taken out above: this is its end.
        unsafe { command::destroy(self.lib, made, "DESTROY_MKEY", object) }
    }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        // As above: the caller reports the error in between.
        let _left = self.destroy();
    }
}

fn errno() -> i32 {
    io::Error::last_os_error()
        .raw_os_error()
        .expect("it is an errno")
}

fn refused(call: &'static str, bytes: usize, errno: i32) -> DeviceError {
    DeviceError::Refused {
        call,
        object: format!("{bytes} bytes of memory"),
        status: 0,
        syndrome: 0,
        errno,
    }
}
