//! Objects that C programs hold: live ones, their users, and the rule of one thread at a time.

use crate::error::{Code, Fault, Result, current, fail};
use crate::lines::thread_id;
use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// A type of objects that C programs hold.
pub(crate) trait Object: Send + Sync + 'static {
    /// Its name in C.
    const NAME: &'static str;
}

type Live = HashMap<usize, Arc<dyn Any + Send + Sync>>;

/// All live objects, by the pointer that the program has.
static LIVE: RwLock<Option<Live>> = RwLock::new(None);

/// Gives an object to the program.
pub(crate) fn publish<T: Object>(object: &Arc<T>) -> *mut T {
    let pointer = Arc::as_ptr(object);
    let mut live = LIVE.write().unwrap_or_else(PoisonError::into_inner);
    live.get_or_insert_default()
        .insert(pointer.addr(), Arc::clone(object) as _);
    pointer.cast_mut()
}

fn dead<T: Object>(pointer: *const T) -> Fault {
    let name = T::NAME;
    let text = if pointer.is_null() {
        format!("the pointer to a {name} is NULL")
    } else {
        format!("{pointer:p} is no live {name}: it was destroyed, or is another object")
    };
    Fault::new(Code::InvalidValue, text)
}

/// The object behind a pointer of the program.
pub(crate) fn find<T: Object>(pointer: *const T) -> Result<Arc<T>> {
    let live = LIVE.read().unwrap_or_else(PoisonError::into_inner);
    let found = live.as_ref().and_then(|live| live.get(&pointer.addr()));
    found
        .and_then(|object| Arc::clone(object).downcast().ok())
        .ok_or_else(|| dead(pointer))
}

/// Ends the pointer of an object.
pub(crate) fn withdraw<T: Object>(object: &Arc<T>) {
    let mut live = LIVE.write().unwrap_or_else(PoisonError::into_inner);
    let taken = live
        .as_mut()
        .and_then(|live| live.remove(&Arc::as_ptr(object).addr()));
    drop(live);
    drop(taken);
}

/// Place for a result, which must not be NULL.
///
/// # Safety
/// A pointer that is not NULL is valid for a write.
pub(crate) unsafe fn store<T>(place: *mut T, value: T) -> Result<()> {
    check_place(place)?;
    // SAFETY: as the caller promises.
    unsafe { place.write(value) };
    Ok(())
}

/// Refuses NULL for a result, before anything changes.
pub(crate) fn check_place<T>(place: *mut T) -> Result<()> {
    if place.is_null() {
        fail!(InvalidValue, "the pointer for the result is NULL");
    }
    Ok(())
}

/// C functions that write one value of an object to a place.
macro_rules! getters {
    ($object:ty; $($function:ident: $of:ty = |$own:ident| $value:expr;)*) => {$(
        #[doc = concat!("`", stringify!($function), "`.")]
        ///
        /// # Safety
        /// `place` is NULL or writable.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $function(object: *const $object, place: *mut $of) -> Code {
            call(stringify!($function), || {
                let $own = find(object)?;
                let value = $value;
                // SAFETY: as the caller promises.
                unsafe { $crate::object::store(place, value) }
            })
        }
    )*};
}
pub(crate) use getters;

/// Refuses 0 and more than `most` of something.
pub(crate) fn check_count(count: u32, most: u32, what: &str) -> Result<u32> {
    if count == 0 || count > most {
        fail!(InvalidValue, "{count} {what}: allowed are 1 to {most}");
    }
    Ok(count)
}

/// Data that one call at a time may use.
#[derive(Debug, Default)]
pub(crate) struct Alone<T> {
    user: Mutex<Option<(i32, &'static str)>>,
    data: Mutex<T>,
}

/// The data during a call.
#[derive(Debug)]
pub(crate) struct Guard<'a, T> {
    user: &'a Mutex<Option<(i32, &'static str)>>,
    data: MutexGuard<'a, T>,
}

impl<T> Alone<T> {
    pub(crate) fn new(data: T) -> Self {
        Self {
            user: Mutex::new(None),
            data: Mutex::new(data),
        }
    }

    /// Begins a call; refuses a second one.
    pub(crate) fn enter(&self) -> Result<Guard<'_, T>> {
        let mut user = self.user.lock().unwrap_or_else(PoisonError::into_inner);
        let own = thread_id();
        if let Some((thread, call)) = *user {
            if thread == own {
                fail!(
                    InUse,
                    "this thread is inside {call} on the same object: call it after the callback"
                );
            }
            fail!(
                InUse,
                "thread {own} calls while thread {thread} is inside {call} on the same object: objects are \
                 not thread-safe; use a lock, or an object for each thread"
            );
        }
        *user = Some((own, current()));
        drop(user);
        Ok(Guard {
            user: &self.user,
            data: self.data.lock().unwrap_or_else(PoisonError::into_inner),
        })
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.data
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.data
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        *self.user.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Who uses an object, by kind.
#[derive(Debug, Default)]
pub(crate) struct Users(Mutex<BTreeMap<&'static str, usize>>);

impl Users {
    /// Adds a user, until the lease is dropped.
    pub(crate) fn lease(self: &Arc<Self>, kind: &'static str) -> Lease {
        *self.lock().entry(kind).or_default() += 1;
        Lease {
            users: Arc::clone(self),
            kind,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses while there is a user.
    pub(crate) fn check_none(&self) -> Result<()> {
        let users = self.lock();
        if let Some((kind, count)) = users.iter().next() {
            fail!(
                InUse,
                "{count} {kind} still in use of it: destroy or stop them first"
            );
        }
        Ok(())
    }
}

/// One use of an object.
#[derive(Debug)]
pub(crate) struct Lease {
    users: Arc<Users>,
    kind: &'static str,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut users = self.users.lock();
        if let Some(count) = users.get_mut(self.kind) {
            *count -= 1;
            if *count == 0 {
                users.remove(self.kind);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::call;
    use std::sync::mpsc::channel;

    #[derive(Debug)]
    struct Thing(Alone<u32>);

    impl Object for Thing {
        const NAME: &'static str = "struct thing";
    }

    #[test]
    fn a_pointer_is_valid_until_the_object_is_withdrawn() {
        let thing = Arc::new(Thing(Alone::new(7)));
        let pointer = publish(&thing);
        assert_eq!(*find(pointer).expect("live").0.enter().expect("free"), 7);
        withdraw(&thing);
        let fault = find(pointer).expect_err("destroyed");
        assert_eq!(fault.code, Code::InvalidValue);
        assert!(
            fault.text.contains("no live struct thing"),
            "{}",
            fault.text
        );
        let null = find::<Thing>(std::ptr::null()).expect_err("NULL");
        assert_eq!(null.text, "the pointer to a struct thing is NULL");
    }

    #[test]
    fn a_second_thread_inside_an_object_is_refused_and_both_are_named() {
        let thing = Arc::new(Thing(Alone::new(0)));
        let (entered, wait_entered) = channel();
        let (leave, wait_leave) = channel::<()>();
        let other = std::thread::spawn({
            let thing = Arc::clone(&thing);
            move || {
                call("thing_change", || {
                    let mut guard = thing.0.enter()?;
                    entered.send(thread_id()).expect("the test waits");
                    let _ = wait_leave.recv();
                    *guard += 1;
                    Ok(())
                })
            }
        });
        let holder = wait_entered.recv().expect("the thread is inside");
        let fault = thing.0.enter().expect_err("another thread is inside");
        assert_eq!(fault.code, Code::InUse);
        let said = fault.text;
        assert!(
            said.contains(&format!("thread {holder} is inside thing_change")),
            "{said}"
        );
        assert!(
            said.contains(&format!("thread {} calls", thread_id())),
            "{said}"
        );
        drop(leave);
        assert_eq!(other.join().expect("no panic"), Code::Success);
        assert_eq!(*thing.0.enter().expect("free again"), 1);
    }

    #[test]
    fn users_are_named_until_they_end() {
        let users = Arc::new(Users::default());
        let first = users.lease("struct doca_mmap");
        let second = users.lease("struct doca_mmap");
        let fault = users.check_none().expect_err("two users");
        assert!(
            fault.text.starts_with("2 struct doca_mmap"),
            "{}",
            fault.text
        );
        drop((first, second));
        users.check_none().expect("none");
    }
}
