//! `CREATE_MKEY` and `DESTROY_MKEY`.

use mlx5_prm::mkey::{self, KLM_BYTES, Klm, access_mode};
use mlx5_prm::umr::access;
use mlx5_prm::{Field, cmd};

use super::dpa;
use super::mailbox::{BAD_PARAM, BAD_RESOURCE, CommandError, Output, Result, full};
use super::mailbox::{get, get8, in_umem, pd_slot};
use crate::commands::call::{Call, Full, Kind};
use crate::fabric::counters::Command;
use crate::fabric::numbers::key_of;
use crate::fabric::numbers::slot_of_number;
use crate::fabric::objects::{Mkey, MkeyKind, MkeyOrigin};
use crate::memory::pins::Pin;
use crate::model::profile::CostKind;
use crate::sys::Errno;

/// Offset of the context in the command, in bytes.
const CONTEXT_AT: u32 = 0x10;
const _: () = assert!(CONTEXT_AT as usize == mkey::CREATE_CONTEXT_AT);

/// A field of the context, at its offset in the command.
fn context(field: Field) -> Field {
    field.within(CONTEXT_AT)
}

/// Rights that the context grants.
fn rights(input: &[u8]) -> u8 {
    [
        (mkey::LOCAL_WRITE, access::LOCAL_WRITE),
        (mkey::REMOTE_READ, access::REMOTE_READ),
        (mkey::REMOTE_WRITE, access::REMOTE_WRITE),
        (mkey::ATOMIC, access::ATOMIC),
    ]
    .into_iter()
    .filter(|(field, _)| context(*field).is_set(input))
    .fold(access::LOCAL_READ, |rights, (_, right)| rights | right)
}

pub(super) fn create(call: &Call<'_>, input: &[u8], capacity: usize) -> Result<(u32, Vec<u8>)> {
    call.count(Command::CreateMkey);
    if call.fabric().profile().is_relaxed_ordering_only()
        && !context(mkey::RELAXED_ORDERING_WRITE).is_set(input)
    {
        return Err(BAD_PARAM);
    }
    let mode = get8(input, context(mkey::ACCESS_MODE_4_2)) << 2
        | get8(input, context(mkey::ACCESS_MODE_1_0));
    let length64 = context(mkey::LENGTH64).is_set(input);
    let start = context(mkey::START_ADDR).get(input);
    let len = if length64 {
        u64::MAX
    } else {
        context(mkey::LEN).get(input)
    };
    let mut key = Mkey {
        start,
        len,
        qpn: get(input, context(mkey::QPN)),
        access: rights(input),
        variant: get8(input, context(mkey::VARIANT)),
        log_entity: get8(input, context(mkey::LOG_ENTITY_SIZE)),
        origin: MkeyOrigin::Command,
        free: context(mkey::FREE).is_set(input),
        umr_enabled: context(mkey::UMR_EN).is_set(input),
        remote_invalidate: context(mkey::EN_RINVAL).is_set(input),
        relaxed: context(mkey::RELAXED_ORDERING_WRITE).is_set(input),
        ..Mkey::default()
    };
    let mut owner = call.owner()?;
    let mut locked = call.lock();
    let function = locked.function(call.function());
    key.pd = pd_slot(call, function, get(input, context(mkey::PD)))?;
    let cost = match mode {
        access_mode::MTT => {
            if !mkey::create::UMEM_VALID.is_set(input) || length64 {
                return Err(BAD_PARAM);
            }
            let umem = get(input, mkey::create::UMEM_ID);
            let offset = mkey::create::UMEM_OFFSET.get(input);
            key.host = in_umem(call, function, umem, offset, len)?;
            let pinned = slot_of_number(umem).and_then(|slot| function.umems.get(slot));
            key.pin = pinned.map_or_else(Pin::default, |umem| umem.pin);
            owner = dpa::owner_in(call, function, &[umem])?;
            key.kind = MkeyKind::Direct;
            CostKind::CreateMkeyDirect
        }
        access_mode::KLMS | access_mode::KSM => {
            key.kind = if mode == access_mode::KSM {
                MkeyKind::Ksm
            } else {
                MkeyKind::Klm
            };
            let list = &input[input.len().min(mkey::CREATE_LIST_AT)..];
            let actual = get(input, mkey::create::TRANSLATIONS_OCTWORDS_ACTUAL) as usize;
            let capacity = get(input, context(mkey::TRANSLATIONS_OCTWORDS)) as usize;
            let entries = list.as_chunks::<KLM_BYTES>().0;
            // A list shorter than its declared length would be read beyond its end.
            let entries = entries.get(..actual).ok_or(BAD_PARAM)?;
            if capacity < actual {
                return Err(BAD_PARAM);
            }
            key.list = function
                .klms
                .take(capacity)
                .ok_or_else(|| full(call, Full::Translations))?;
            for (index, entry) in entries.iter().enumerate() {
                function.klms.set(key.list, index, Klm::parse(entry));
            }
            key.entries = u32::try_from(actual).map_err(|_| BAD_PARAM)?;
            if key.free {
                CostKind::CreateMkeyUmr
            } else {
                CostKind::CreateMkeyKsm
            }
        }
        _ => return Err(BAD_PARAM),
    };
    call.costs(cost, len);
    let Some(slot) = call.insert_mkey(function, owner, key) else {
        function.klms.give_back(key.list);
        return Err(full(call, Full::Mkeys));
    };
    let mut output = Output::new(cmd::HEADER_BYTES, capacity);
    output.set(cmd::OBJECT_NUMBER, u64::from(key_of(slot, 0) >> 8));
    Ok((Kind::Mkey.handle(slot), output.done()))
}

pub(super) fn destroy(call: &Call<'_>, slot: u32) -> Result<()> {
    let mut locked = call.lock();
    let function = locked.function(call.function());
    let missing = CommandError::Kernel(Errno(libc::ENOENT));
    let key = *function
        .mkeys
        .owned(slot, call.context.number)
        .ok_or(missing)?;
    let (command, cost) = match (key.origin, key.kind) {
        (MkeyOrigin::Alias, _) => (Command::DestroyAlias, CostKind::AliasDestroy),
        (MkeyOrigin::Command, _) if key.umr_enabled => {
            (Command::DestroyMkey, CostKind::DestroyMkeyUmr)
        }
        (MkeyOrigin::Command, MkeyKind::Direct) => {
            (Command::DestroyMkey, CostKind::DestroyMkeyDirect)
        }
        (MkeyOrigin::Command, _) => (Command::DestroyMkey, CostKind::DestroyMkeyKsm),
        // Regions and windows belong to the kernel. A command cannot destroy them.
        _ => return Err(BAD_RESOURCE),
    };
    call.count(command);
    call.costs(cost, key.len);
    function.remove_mkey(slot);
    Ok(())
}
