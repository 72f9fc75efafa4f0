//! Cross-function keys: `ALLOW_OTHER_VHCA_ACCESS` and alias objects.

use mlx5_prm::mkey::QPN_ANY;
use mlx5_prm::xgvmi::{ACCESS_KEY_BYTES, OBJECT_TYPE_MKEY, alias, allow};
use mlx5_prm::{cmd, umr::access};

use super::mailbox::{
    BAD_PARAM, BAD_RESOURCE, BAD_STATE, Output, Result, full, get, get16, pd_slot,
};
use crate::commands::call::{Call, Full, Kind};
use crate::fabric::counters::Command;
use crate::fabric::numbers::slot_of;
use crate::fabric::objects::{Mkey, MkeyKind, MkeyOrigin, Target};
use crate::model::profile::CostKind;

fn access_key(input: &[u8], at: usize) -> Result<[u8; ACCESS_KEY_BYTES]> {
    let bytes = input.get(at..at + ACCESS_KEY_BYTES).ok_or(BAD_PARAM)?;
    bytes.try_into().map_err(|_| BAD_PARAM)
}

/// The slot of an mkey that a command names by its 24-bit index.
fn slot_of_index(index: u32) -> Result<u32> {
    if index > 0xff_ffff {
        return Err(BAD_PARAM);
    }
    slot_of(index << 8).ok_or(BAD_RESOURCE)
}

/// `ALLOW_OTHER_VHCA_ACCESS`.
pub(super) fn allow(call: &Call<'_>, input: &[u8], capacity: usize) -> Result {
    call.count(Command::AllowOtherVhcaAccess);
    if get16(input, allow::OBJECT_TYPE) != OBJECT_TYPE_MKEY {
        return Err(BAD_PARAM);
    }
    let slot = slot_of_index(get(input, allow::OBJECT_ID))?;
    let access_key = access_key(input, allow::ACCESS_KEY_AT)?;
    let mut locked = call.lock();
    let function = locked.function(call.function());
    // A user may permit access to its own keys only.
    let owner = function.mkeys.owner(slot).ok_or(BAD_RESOURCE)?;
    if owner.process != call.owner()?.process {
        return Err(BAD_RESOURCE);
    }
    let mkey = function.mkeys.get_mut(slot).ok_or(BAD_RESOURCE)?;
    if mkey.kind == MkeyKind::Alias {
        return Err(BAD_STATE);
    }
    mkey.allowed = true;
    mkey.access_key = access_key;
    let cost = if mkey.umr_enabled {
        CostKind::AllowUmr
    } else {
        CostKind::AllowKsm
    };
    call.costs(cost, mkey.len);
    Ok(Output::new(cmd::HEADER_BYTES, capacity).done())
}

/// `CREATE_GENERAL_OBJECT`: an alias of another function's mkey.
pub(super) fn create_object(
    call: &Call<'_>,
    input: &[u8],
    capacity: usize,
) -> Result<(u32, Vec<u8>)> {
    call.count(Command::CreateAlias);
    let is_alias = cmd::GENERAL_OBJECT_ALIAS.is_set(input);
    if get16(input, cmd::GENERAL_OBJECT_TYPE) != OBJECT_TYPE_MKEY || !is_alias {
        return Err(BAD_PARAM);
    }
    let vhca_id = get16(input, alias::VHCA_ID);
    let index = slot_of_index(get(input, alias::OBJECT_ID))?;
    let presented = access_key(input, alias::ACCESS_KEY_AT)?;
    let fabric = call.fabric();
    // A vHCA id names a function of the same card.
    let is_near = |there: &usize| fabric.card_of(*there) == fabric.card_of(call.function());
    let target_function = fabric
        .function_of_vhca(vhca_id)
        .filter(is_near)
        .ok_or(BAD_RESOURCE)?;
    let owner = call.owner()?;
    let mut locked = call.lock();
    let mkeys = &locked.peek(target_function).mkeys;
    let target = *mkeys.get(index).ok_or(BAD_RESOURCE)?;
    let generation = mkeys.generation(index).ok_or(BAD_RESOURCE)?;
    // The error is the same for a wrong access key and for a key without permission, so it reveals
    // nothing to another user.
    if !target.allowed || target.access_key != presented || target.kind == MkeyKind::Alias {
        return Err(BAD_RESOURCE);
    }
    let function = locked.function(call.function());
    let pd = pd_slot(call, function, get(input, alias::METADATA_1))?;
    let mkey = Mkey {
        pd,
        len: target.len,
        qpn: QPN_ANY,
        access: access::LOCAL_READ,
        target: Target {
            function: u32::try_from(target_function).map_err(|_| BAD_RESOURCE)?,
            index,
            generation,
        },
        kind: MkeyKind::Alias,
        origin: MkeyOrigin::Alias,
        ..Mkey::default()
    };
    let slot = call
        .insert_mkey(function, owner, mkey)
        .ok_or_else(|| full(call, Full::Mkeys))?;
    call.costs(CostKind::AliasCreate, target.len);
    let mut output = Output::new(alias::IN_BYTES, capacity);
    fill(&mut output, slot, vhca_id, index);
    Ok((Kind::Mkey.handle(slot), output.done()))
}

/// True if a command creates an alias of a key that is not bound: never, or not since its
/// invalidation.
pub(in crate::commands) fn is_alias_of_free(call: &Call<'_>, input: &[u8]) -> bool {
    let target = slot_of_index(get(input, alias::OBJECT_ID)).ok();
    let function = call.fabric().function_of_vhca(get16(input, alias::VHCA_ID));
    let (true, Some(slot), Some(function)) =
        (cmd::GENERAL_OBJECT_ALIAS.is_set(input), target, function)
    else {
        return false;
    };
    let locked = call.lock();
    let key = locked.peek(function).mkeys.get(slot);
    key.is_some_and(|key| key.free)
}

fn fill(output: &mut Output, slot: u32, vhca_id: u16, target: u32) {
    let index = |slot: u32| u64::from(crate::fabric::numbers::key_of(slot, 0) >> 8);
    output
        .set(cmd::GENERAL_OBJECT_ID, index(slot))
        .set(alias::VHCA_ID, u64::from(vhca_id))
        .set(alias::STATUS, u64::from(alias::status::READY))
        .set(alias::OBJECT_ID, index(target));
}

/// `QUERY_GENERAL_OBJECT`: reports whether the alias's target still exists.
pub(super) fn query_object(call: &Call<'_>, slot: u32, input: &[u8], capacity: usize) -> Result {
    call.count(Command::Other);
    if get16(input, cmd::GENERAL_OBJECT_TYPE) != OBJECT_TYPE_MKEY {
        return Err(BAD_PARAM);
    }
    let locked = call.lock();
    let mkey = *locked
        .peek(call.function())
        .mkeys
        .owned(slot, call.context.number)
        .filter(|mkey| mkey.kind == MkeyKind::Alias)
        .ok_or(BAD_RESOURCE)?;
    let there = &locked.peek(mkey.target.function as usize).mkeys;
    let identity = call.fabric().identity(mkey.target.function as usize);
    let mut output = Output::new(alias::IN_BYTES, capacity);
    fill(
        &mut output,
        slot,
        identity.map_or(0, |identity| identity.vhca_id),
        mkey.target.index,
    );
    if there.generation(mkey.target.index) != Some(mkey.target.generation) {
        output.set(alias::STATUS, u64::from(alias::status::ERROR));
    }
    Ok(output.done())
}
