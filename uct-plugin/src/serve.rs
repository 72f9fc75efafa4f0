//! Which memory domains the library serves: the check of a domain that UCX opened, and the release
//! of everything that belongs to a domain that UCX closes.

use std::ffi::c_void;
use std::sync::Arc;

use crate::abi::MdHandle;
use crate::counter_file::Event;
use crate::domains::{self, Added, MDS_MAX, State};
use crate::md::Md;
use crate::memh::{self, IMPORTS};
use crate::original::Object;
use crate::registrations::REGISTRATIONS;
use crate::{allocator, check, config, forked, kept, log, owner, panic, ucp, vfs};

/// True if the memory domain is served. Takes no lock for a known one.
///
/// # Safety
/// `md` must be an open memory domain of the object.
#[inline]
pub(crate) unsafe fn is_served(object: &'static Object, md: MdHandle) -> bool {
    match domains::state(md) {
        State::Served => true,
        State::NotServed => false,
        // SAFETY: by the contract of this function.
        State::Unknown => unsafe { look_at(object, md) },
    }
}

/// The memory domain, if it is served and the library works.
///
/// # Safety
/// `md` must be an open memory domain of the object. The caller drops the result before the end of
/// the operation on it: UCX closes no memory domain while an operation on it runs.
#[inline]
pub(crate) unsafe fn get<'a>(object: &'static Object, md: MdHandle) -> Option<&'a Md> {
    if panic::is_broken() {
        return None;
    }
    // SAFETY: by the contract of this function.
    match unsafe { domains::known(md) } {
        Some(served) => Some(served),
        // SAFETY: as above.
        None => unsafe { get_unknown(object, md) },
    }
}

/// The other cases of [`get`]: a memory domain that is not served or not checked yet.
///
/// # Safety
/// See [`get`].
#[cold]
unsafe fn get_unknown<'a>(object: &'static Object, md: MdHandle) -> Option<&'a Md> {
    // SAFETY: by the contract of this function.
    if !unsafe { is_served(object, md) } {
        return None;
    }
    // SAFETY: as above.
    unsafe { domains::known(md) }
}

/// Checks a memory domain that was opened before this library was loaded.
///
/// # Safety
/// See [`is_served`].
#[cold]
unsafe fn look_at(object: &'static Object, md: MdHandle) -> bool {
    if domains::is_full() {
        return false;
    }
    // Several times the size of the attributes in any version. All zero, like UCX's own arguments,
    // except for the mask of the requested fields.
    let mut attr = [0_u64; 512];
    attr[0] = u64::MAX;
    let attr = attr.as_mut_ptr().cast::<c_void>();
    // SAFETY: by the contract of this function; the buffer is large enough for the attributes.
    let status = unsafe { (object.originals().md_query)(md, attr) };
    if status.is_ok() {
        // SAFETY: by the contract of this function; the attributes have just been filled.
        unsafe { opened(object, md, attr) };
    }
    domains::state(md) == State::Served
}

/// Checks a memory domain that UCX has just opened, and serves it from now on if possible.
///
/// # Safety
/// `md` must be an open memory domain of the object, and `attr` the attributes that its `md_query`
/// has just filled.
pub(crate) unsafe fn opened(object: &'static Object, md: MdHandle, attr: *const c_void) {
    // Without memory the check is repeated at the next registration.
    if domains::state(md) != State::Unknown || allocator::is_short() {
        return;
    }
    let _is_watching = forked::watch_forks();
    kept::start(object, |visit| domains::each(|md| visit(md.handle())));
    // SAFETY: by the contract of this function.
    let new = unsafe { checked(object, md, attr) };
    if let Some(new) = &new {
        ucp::look_at(object);
        if config::get().pool_init() > 0 {
            new.get_ready();
        }
    }
    let identity = new.as_ref().map(Md::identity);
    match domains::add(md, new) {
        Added::Done => {}
        Added::Known => return,
        Added::Full => {
            log::info!("memory domain not served: the limit of {MDS_MAX} is reached");
            return;
        }
    }
    if let Some(identity) = identity
        && config::get().stats
    {
        // SAFETY: by the contract of this function. No lock is held here, because UCX holds one of
        // its own while it reads counters.
        unsafe { vfs::show(object, md, identity) };
    }
}

/// The memory domain, if the library can serve it.
///
/// # Safety
/// See [`opened`].
unsafe fn checked(object: &'static Object, md: MdHandle, attr: *const c_void) -> Option<Arc<Md>> {
    // SAFETY: by the contract of this function.
    match unsafe { check::md(md, attr) } {
        Ok(Some(facts)) => {
            let owner = owner::draw();
            if owner.is_none() {
                log::warning!("memory domain not served: no random numbers");
            }
            Some(Arc::new(Md::new(object, md, facts, owner?)))
        }
        // A device that cannot export keys.
        Ok(None) => None,
        Err(refusal) => {
            log::warning!("memory domain not served: {refusal}");
            None
        }
    }
}

/// Most keys that one refused export destroys: UCX creates keys one by one or in groups of a few.
const SHED: u32 = 64;

/// Destroys free keys after UCX could not create one: those of this memory domain's pool, else those of another one. True
/// if there were some, so that UCX may try again.
#[cold]
pub(crate) fn shed_keys(md: MdHandle) -> bool {
    // SAFETY: UCX does not close the memory domain during a call for it.
    let own = unsafe { domains::known(md) };
    let mut shed = own.map_or(0, |own| own.shed_keys(SHED));
    domains::each(|served| {
        if shed == 0 {
            shed = served.shed_keys(SHED);
        }
    });
    shed > 0
}

/// Releases everything of a memory domain that UCX is about to close.
pub(crate) fn closing(md: MdHandle) {
    if domains::state(md) == State::Unknown {
        return;
    }
    let taken = domains::remove(md);
    let address = md.addr();
    let mut exports = 0_usize;
    let host = taken.as_ref().and_then(|md| md.opened_host());
    let count = |event| {
        if let Some(md) = &taken {
            md.count(event);
        }
    };
    REGISTRATIONS.forget_all(address, |key| {
        exports += 1;
        // The pool destroys keys that cannot be invalidated.
        let is_done = host.is_none_or(|host| host.unbind(key).is_ok());
        count(Event::of_release(is_done));
    });
    let mut imports = 0_usize;
    IMPORTS.take(
        |import| import.md == address,
        |handle, import| {
            imports += 1;
            if let Some(md) = &taken {
                md.unpin(import.alias);
            }
            count(Event::ImportReleased);
            // SAFETY: `import` allocated the value in the table, and it is no longer in the table.
            unsafe { memh::free(std::ptr::with_exposed_provenance_mut(handle)) };
        },
    );
    if exports + imports > 0 {
        log::debug!("{exports} exports and {imports} imports were still in use");
    }
    if let Some(md) = taken {
        vfs::remove(md.object(), Md::identity(&md));
        domains::keep_numbers(md.numbers().of_closed());
        md.shut();
    }
}
