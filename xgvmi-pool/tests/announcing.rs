//! Announcements: aliases that an importer creates in advance, and messages that it refuses.

use std::sync::Arc;

use xgvmi_pool::sim::{SimDevice, SimFabric};
use xgvmi_pool::{
    AliasPolicy, AnnounceError, Announcement, Body, DpuHooks, Export, Gvmi, HostHooks, Lkey,
    OwnerUuid, PoolPolicy, Region, RemoteExport, Seal, Secret, VirtAddr,
};

const HOST: Gvmi = Gvmi::new(1);
const DPU: Gvmi = Gvmi::new(2);
const OWNER: OwnerUuid = OwnerUuid::new(0xaaaa);

fn secret(byte: u8) -> Secret {
    Secret::new(&[byte; 32]).expect("long enough")
}

/// Both sides of a job with a secret.
fn sides(fabric: &SimFabric, aliases_max: u32) -> (HostHooks<SimDevice>, DpuHooks<SimDevice>) {
    let access_key = secret(1).access_key();
    let policy = PoolPolicy {
        prefill: 64,
        access_key: access_key.clone(),
        ..PoolPolicy::default()
    };
    let host = HostHooks::open(fabric.function(HOST), policy).expect("a pool");
    let policy = AliasPolicy {
        aliases_max,
        access_key,
        ..AliasPolicy::default()
    };
    let seal = secret(1).seal();
    let dpu = DpuHooks::open_sealed(fabric.function(DPU), policy, seal).expect("a map");
    (host, dpu)
}

fn export(host: &HostHooks<SimDevice>, number: u64) -> Export<SimDevice> {
    let region = Region::new(VirtAddr::new((number + 1) << 20), 0x4000, Lkey::from_raw(1));
    host.export(region.expect("a region")).expect("a key")
}

#[test]
fn announced_keys_have_their_aliases_before_they_are_used() {
    let fabric = SimFabric::new();
    let (host, dpu) = sides(&fabric, 1024);
    let message = host.pool().announce(OWNER, 1).to_bytes(&secret(1).seal());
    assert!(
        message.len() <= 64 + 16,
        "{} bytes for 64 keys",
        message.len()
    );
    let (announcement, prepared) = dpu.receive(&message).expect("taken in");
    assert_eq!((prepared.ready, prepared.failed), (64, 0));
    assert_eq!(announcement.keys().count(), 64);
    let before = fabric.counts().create_alias;
    for number in 0..64 {
        let export = export(&host, number);
        let key = announcement
            .keys()
            .find(|key| key.mkey == export.mkey())
            .expect("announced");
        let alias = dpu.attach(key).expect("an alias");
        let reached = fabric.reach(DPU, alias.lkey(), export.addr(), export.len());
        assert_eq!(reached.map(|region| region.addr()), Ok(export.addr()));
    }
    assert_eq!(
        fabric.counts().create_alias,
        before,
        "none was made after the announcement"
    );
}

#[test]
fn many_exports_travel_and_are_attached_together() {
    let fabric = SimFabric::new();
    let (host, dpu) = sides(&fabric, 1024);
    let exports: Vec<_> = (0..32).map(|number| export(&host, number)).collect();
    let message = Announcement {
        gvmi: host.gvmi(),
        owner: OWNER,
        sequence: 1,
        body: Body::Exports(exports.iter().map(RemoteExport::of).collect()),
    };
    let (received, prepared) = dpu
        .receive(&message.to_bytes(&secret(1).seal()))
        .expect("in");
    assert_eq!((&received, prepared.ready), (&message, 32));
    let keys: Vec<_> = received.keys().collect();
    let aliases = dpu.attach_many(&keys);
    assert_eq!(dpu.stats().creates, 32);
    let Body::Exports(regions) = received.body else {
        panic!("exports were sent")
    };
    for (alias, remote) in aliases.iter().zip(regions) {
        let alias = alias.as_ref().expect("an alias");
        assert!(
            fabric
                .reach(DPU, alias.lkey(), remote.addr, remote.len)
                .is_ok()
        );
    }
}

#[test]
fn an_announcement_puts_nothing_out() {
    let fabric = SimFabric::new();
    let (host, dpu) = sides(&fabric, 70);
    let exports: Vec<_> = (0..10).map(|number| export(&host, number)).collect();
    let used: Vec<_> = exports
        .iter()
        .map(|export| {
            let (gvmi, mkey) = (export.gvmi(), export.mkey());
            xgvmi_pool::RemoteKey {
                gvmi,
                mkey,
                owner: OwnerUuid::new(0xbbbb),
            }
        })
        .collect();
    let aliases = dpu.attach_many(&used);
    assert!(aliases.iter().all(Result::is_ok));
    drop(aliases);
    host.pool().prefill(128);
    let message = host
        .pool()
        .announce(OwnerUuid::new(0xbbbb), 1)
        .to_bytes(&secret(1).seal());
    let (_, prepared) = dpu.receive(&message).expect("taken in");
    let keys = usize::try_from(host.stats().keys).expect("a hundred or so");
    assert_eq!((prepared.ready, prepared.left_out), (70, keys - 70));
    assert_eq!(dpu.stats().evictions, 0);
    let hits = dpu.stats().hits;
    drop(dpu.attach_many(&used));
    assert_eq!(
        dpu.stats().hits - hits,
        10,
        "what was there before is there still"
    );
}

#[test]
fn messages_of_others_and_of_yesterday_change_nothing() {
    let fabric = SimFabric::new();
    let (host, dpu) = sides(&fabric, 1024);
    let announcement = host.pool().announce(OWNER, 7);
    for seal in [Seal::OPEN, secret(2).seal()] {
        let error = dpu
            .receive(&announcement.to_bytes(&seal))
            .expect_err("another job's");
        assert_eq!(error, AnnounceError::Seal);
    }
    let mut message = announcement.to_bytes(&secret(1).seal());
    assert!(dpu.receive(&message[..50]).is_err());
    message[41] ^= 1;
    assert_eq!(
        dpu.receive(&message).expect_err("damaged"),
        AnnounceError::Seal
    );
    message[41] ^= 1;
    assert_eq!((dpu.stats().creates, dpu.stats().aliases), (0, 0));
    assert!(
        dpu.receive(&message).is_ok(),
        "what came before it is forgotten"
    );
    let creates = dpu.stats().creates;
    assert!(matches!(
        dpu.receive(&message),
        Err(AnnounceError::Replayed { seen: 7, .. })
    ));
    assert_eq!(dpu.stats().creates, creates);
}

#[test]
fn a_job_without_the_secret_gets_no_alias() {
    let fabric = SimFabric::new();
    let (host, _dpu) = sides(&fabric, 1024);
    let stranger = DpuHooks::open(fabric.function(DPU), AliasPolicy::default()).expect("a map");
    let message = host.pool().announce(OWNER, 1).to_bytes(&Seal::OPEN);
    let (_, prepared) = stranger.receive(&message).expect("well formed");
    // After 16 failures, only the other threads' present attempts follow.
    assert!((16..64).contains(&prepared.failed), "{prepared:?}");
    let tried = (prepared.ready, prepared.failed + prepared.left_out);
    assert_eq!(tried, (0, 64));
    assert!(prepared.error.is_some());
    assert_eq!(stranger.stats().aliases, 0);
}

#[test]
fn threads_that_prepare_and_attach_the_same_keys_make_each_alias_once() {
    let fabric = SimFabric::new();
    let (host, dpu) = sides(&fabric, 1024);
    let keys: Vec<_> = host.pool().announce(OWNER, 1).keys().collect();
    let dpu = Arc::new(dpu);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert!(dpu.attach_many(&keys).iter().all(Result::is_ok)));
            scope.spawn(|| assert_eq!(dpu.aliases().prepare(&keys).ready, 64));
        }
    });
    assert_eq!((dpu.stats().creates, dpu.stats().aliases), (64, 64));
}
