//! What the product posts, read by a decoder that shares no code with it or with the emulated device: every UMR request
//! and every command about keys and aliases that the pool's own check program sends, from the device's trace.

#[path = "../wire/decode.rs"]
#[allow(dead_code, reason = "the golden bytes use more of it")]
mod decode;

use crate::harness::Case;
use crate::process;
use crate::world::{LIMIT, Testbed, World, succeed};
use anyhow::{Context as _, Result, bail, ensure};
use decode::{Command, Completion, Translation, Umr, mask};
use serde_json::Value;
use std::collections::BTreeSet;

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::new("posted_bytes_are_read_independently", posted)]
}

/// Object type of an mkey in commands between functions (UCX `ib_mlx5_ifc.h`).
const MKEY: u16 = 0xff01;
/// A key that any queue pair may use.
const ANY_QUEUE_PAIR: u32 = 0xff_ffff;
/// Length of an entry whose byte count is zero.
const WHOLE: u64 = 1 << 31;

/// Checks that post every form, one after the other, and few enough requests for the trace. The others post wrong
/// requests on purpose, or many.
const CHECKS: [&str; 6] = [
    "a_bound_key_is_read_through_its_alias_and_a_released_one_is_not",
    "an_unaligned_region_is_read_to_its_last_byte_and_no_further",
    "a_region_of_five_gigabytes_takes_one_key",
    "memory_that_was_registered_in_pieces_takes_one_key",
    "sixty_four_keys_are_bound_and_freed_together",
    "a_key_is_freed_in_front_of_the_next_bind",
];

/// How many of each form were seen.
#[derive(Debug, Default)]
struct Seen {
    single: usize,
    lists: usize,
    invalidations: usize,
    with_completion: usize,
    without_completion: usize,
    created: usize,
    allowed: BTreeSet<(u32, [u8; 32])>,
    aliases: usize,
}

fn posted(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    // A device to trace.
    succeed(&mut testbed.command("node0.host", "true"))?;
    process::stdout(testbed.emulator("trace").arg("--on"), LIMIT)?;
    let mut command = testbed.command("node0.host,node0.dpu", world.built("device_check"));
    succeed(command.args(["mlx5_0", "mlx5_1"]).args(CHECKS))?;
    let text = process::stdout(testbed.emulator("trace").arg("--json"), LIMIT)?;
    let mut seen = Seen::default();
    for (kind, bytes) in messages(&text)? {
        let shown = || format!("{kind} of {bytes:02x?}");
        match kind {
            Kind::Request => request(&bytes, &mut seen).with_context(shown)?,
            Kind::Command => key_command(&bytes, &mut seen).with_context(shown)?,
        }
    }
    for (what, count) in [
        ("binds of one region", seen.single),
        ("binds of several regions", seen.lists),
        ("invalidations", seen.invalidations),
        ("requests with a completion", seen.with_completion),
        ("requests without one", seen.without_completion),
        ("created keys", seen.created),
        ("allowed keys", seen.allowed.len()),
        ("aliases", seen.aliases),
    ] {
        ensure!(count > 0, "no {what}: {seen:?}");
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Request,
    Command,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Request => "a request",
            Self::Command => "a command",
        })
    }
}

/// The parts of the trace's records joined to whole requests and commands. Parts of one message follow each other, as
/// the device executes under one lock and the program issues its commands one after the other.
fn messages(trace: &str) -> Result<Vec<(Kind, Vec<u8>)>> {
    let mut messages: Vec<(Kind, Vec<u8>)> = Vec::new();
    for line in trace.lines() {
        let record: Value = serde_json::from_str(line)?;
        let kind = match record["kind"].as_str() {
            Some("entry") => Kind::Request,
            Some("mailbox") => Kind::Command,
            _ => continue,
        };
        let hex = record["hex"].as_str().context("no bytes")?;
        let pairs = (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16));
        let bytes: Vec<u8> = pairs.collect::<Result<_, _>>()?;
        match (record["part"].as_u64(), messages.last_mut()) {
            (Some(0), _) => messages.push((kind, bytes)),
            (Some(part), Some((known, whole)))
                if *known == kind && whole.len() as u64 == part * 32 =>
            {
                whole.extend(bytes);
            }
            _ => bail!("a part without the one before it: {line}"),
        }
    }
    Ok(messages)
}

/// A bind sets all that a peer's access needs, over entries that cover the key's length; an invalidation frees the key.
fn request(bytes: &[u8], seen: &mut Seen) -> Result<()> {
    let umr = Umr::decode(bytes)?;
    match umr.completion {
        Completion::OnError => seen.without_completion += 1,
        Completion::Always => seen.with_completion += 1,
        other => bail!("completion {other:?}"),
    }
    ensure!(
        umr.mask & mask::FREE != 0,
        "it neither binds nor frees the key"
    );
    if !umr.leaves_the_key_usable() {
        // libmlx5 says that the list is part of the request, and that it is empty.
        let empty = umr.translation == Translation::List(Vec::new());
        ensure!(
            empty || umr.translation == Translation::Unchanged,
            "{:?}",
            umr.translation
        );
        seen.invalidations += 1;
        return Ok(());
    }
    let wanted = mask::LENGTH | mask::START | mask::REMOTE_READ | mask::REMOTE_WRITE;
    ensure!(umr.mask & wanted == wanted, "mask {:#x}", umr.mask);
    let access = umr.context.access;
    ensure!(
        access.remote_read && access.remote_write && access.local_write,
        "{access:?}"
    );
    ensure!(umr.context.queue_pair == ANY_QUEUE_PAIR);
    ensure!(umr.inline && umr.translation_offset.unwrap_or(0) == 0);
    let Translation::List(entries) = &umr.translation else {
        bail!("{:?}", umr.translation);
    };
    let length = |count: u32| if count == 0 { WHOLE } else { u64::from(count) };
    let covered: u64 = entries.iter().map(|entry| length(entry.byte_count)).sum();
    ensure!(
        covered == umr.context.length,
        "entries cover {covered} of {} bytes",
        umr.context.length
    );
    ensure!(entries[0].address == umr.context.start);
    match entries.len() {
        1 => seen.single += 1,
        _ => seen.lists += 1,
    }
    Ok(())
}

/// A key is created free, for UMR, and indirect; an alias asks for a key that was allowed, by the same access key.
fn key_command(bytes: &[u8], seen: &mut Seen) -> Result<()> {
    match Command::decode(bytes)? {
        None => {}
        Some(Command::CreateMkey {
            context,
            umem,
            list,
            ..
        }) => {
            ensure!(context.umr_enabled && context.free && umem.is_none());
            ensure!(
                context.access_mode == 2,
                "access mode {}",
                context.access_mode
            );
            ensure!(context.queue_pair == ANY_QUEUE_PAIR);
            ensure!(context.translation_octowords >= 4 && context.translation_octowords % 4 == 0);
            ensure!(list.is_empty() || list.iter().all(|entry| entry.key == 0));
            seen.created += 1;
        }
        Some(Command::AllowOtherVhcaAccess {
            object_type,
            object,
            access_key,
        }) => {
            ensure!(object_type == MKEY && object < 1 << 24);
            seen.allowed.insert((object, access_key));
        }
        Some(Command::CreateAlias {
            object_type,
            object,
            access_key,
            protection_domain,
            ..
        }) => {
            ensure!(object_type == MKEY && protection_domain != 0);
            // One that was never allowed is an import that must fail.
            if seen.allowed.contains(&(object, access_key)) {
                seen.aliases += 1;
            }
        }
    }
    Ok(())
}
