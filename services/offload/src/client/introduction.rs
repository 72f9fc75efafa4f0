//! What ranks tell each other when they connect. Every rank reads the contributions of all, so each takes few bytes: a node
//! and its SPs are told as a number, and the addresses of an SP by one of its ranks.

use super::lanes::LANES_MAX;
use crate::control::{
    PROTOCOL, RANKS_MAX, ServiceAddress, Table, Welcome, get_address, put_address,
};
use crate::error::{OffloadError, Result};
use crate::exchange::Exchange;
use crate::job_id::JobId;
use crate::scheme::Scheme;
use std::collections::BTreeMap;
use std::fmt::Debug;
use xgvmi_daemon::codec::{BadMessage, Reader, Writer};

/// First bytes of a contribution. Its version follows.
const MAGIC: [u8; 4] = *b"xgvi";

const SCHEMES: [Scheme; 3] = [Scheme::Ksm, Scheme::Stock, Scheme::Xgvmi];

/// Maximum length of the reason of a failure.
const REASON_MAX: usize = 2048;

/// First contribution of each rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Introduction {
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) scheme: Scheme,
    /// Number of the rank's node and its SPs: see [`place`].
    pub(super) place: u64,
    /// Number of the node's SPs, and minimum number of ranks of each.
    pub(super) services: u32,
    pub(super) least: u32,
    /// The job's identifier, from rank 0.
    pub(super) job: Option<JobId>,
}

/// A step's contribution of a rank.
pub(super) trait Contribution: Sized {
    fn put(&self, writer: &mut Writer);

    fn get(reader: &mut Reader<'_>) -> std::result::Result<Self, BadMessage>;
}

/// Result of a rank's step at its SP, or the reason for its failure.
pub(super) type Met<T> = std::result::Result<T, Unmet>;

/// Reason why a step failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unmet {
    pub(super) reason: String,
    /// The rank only timed out waiting for others.
    pub(super) late: bool,
}

/// What all ranks know of a rank's SP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    unique: u64,
    direct_min: u64,
    silence_ms: u64,
    pub(super) call_bytes: u64,
    radix: u32,
    /// The addresses, from one of the SP's ranks.
    address: Option<ServiceAddress>,
}

/// A number of a node and its SPs in their order (FNV-1a, which is the same in every build).
pub(super) fn place(node: &str, services: &[String]) -> u64 {
    let words = std::iter::once(node).chain(services.iter().map(String::as_str));
    let bytes = words.flat_map(|word| word.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Gives this rank's contribution and returns those of all ranks.
pub(super) fn share<T: Contribution>(exchange: &mut dyn Exchange, mine: &T) -> Result<Vec<T>> {
    let mut writer = Writer::default();
    writer.raw(&MAGIC).u32(PROTOCOL);
    mine.put(&mut writer);
    let all = exchange
        .allgather(&writer.finish())
        .map_err(OffloadError::Exchange)?;
    let all = (0..).zip(&all).map(|(rank, bytes)| {
        read(bytes).map_err(|why| OffloadError::Exchange(format!("rank {rank} {why}").into()))
    });
    all.collect()
}

/// Reads a contribution. The error says what is wrong with the rank.
fn read<T: Contribution>(bytes: &[u8]) -> std::result::Result<T, String> {
    let mut reader = Reader::new("contribution of a rank", bytes);
    let is_ours = reader.raw().is_ok_and(|magic: [u8; 4]| magic == MAGIC);
    let version = reader.u32().ok().filter(|_| is_ours);
    match version {
        // Up to protocol 7 the ranks sent JSON.
        None if bytes.first() == Some(&b'{') => {
            return Err(format!(
                "has a version of the offload's protocol before {PROTOCOL}: use the same program on all nodes"
            ));
        }
        None => return Err("is no rank of the offload".to_owned()),
        Some(PROTOCOL) => {}
        Some(version) => {
            return Err(format!(
                "has version {version} of the offload's protocol, and this rank {PROTOCOL}: use the same program on all nodes"
            ));
        }
    }
    let contribution = T::get(&mut reader).map_err(|bad| format!("sends {bad}"))?;
    reader.end().map_err(|bad| format!("sends {bad}"))?;
    Ok(contribution)
}

impl Contribution for Introduction {
    fn put(&self, writer: &mut Writer) {
        let scheme = SCHEMES.iter().position(|scheme| *scheme == self.scheme);
        writer.u32(self.rank).u32(self.size);
        writer.u8(u8::try_from(scheme.unwrap_or(0)).unwrap_or(0));
        writer.u64(self.place);
        writer.varint(self.services.into());
        writer.varint(self.least.into());
        if let Some(job) = self.job {
            writer.raw(&job.0.to_le_bytes());
        }
    }

    fn get(reader: &mut Reader<'_>) -> std::result::Result<Self, BadMessage> {
        let (rank, size) = (reader.u32()?, reader.u32()?);
        let [scheme] = reader.raw()?;
        let scheme = SCHEMES.get(usize::from(scheme)).copied();
        let scheme = scheme.ok_or_else(|| reader.fault("of an unknown scheme"))?;
        let place = reader.u64()?;
        let mut number = || {
            let number = reader.varint()?;
            u32::try_from(number).map_err(|_| reader.fault("with too large a number"))
        };
        Ok(Self {
            rank,
            size,
            services: number()?,
            least: number()?,
            place,
            scheme,
            job: match reader.rest() {
                [] => None,
                _ => Some(JobId(u128::from_le_bytes(reader.raw()?))),
            },
        })
    }
}

impl<T: Contribution> Contribution for Met<T> {
    fn put(&self, writer: &mut Writer) {
        match self {
            Ok(value) => value.put(writer.u8(0)),
            Err(unmet) => {
                let reason = unmet.reason.as_bytes();
                writer.u8(1 + u8::from(unmet.late));
                writer.blob(&reason[..reason.len().min(REASON_MAX)]);
            }
        }
    }

    fn get(reader: &mut Reader<'_>) -> std::result::Result<Self, BadMessage> {
        let [kind] = reader.raw()?;
        match kind {
            0 => Ok(Ok(T::get(reader)?)),
            1 | 2 => Ok(Err(Unmet {
                reason: String::from_utf8_lossy(reader.blob()?).into_owned(),
                late: kind == 2,
            })),
            _ => Err(reader.fault("of an unknown kind")),
        }
    }
}

impl Contribution for () {
    fn put(&self, _: &mut Writer) {}

    fn get(_: &mut Reader<'_>) -> std::result::Result<Self, BadMessage> {
        Ok(())
    }
}

impl Contribution for Told {
    fn put(&self, writer: &mut Writer) {
        writer.u64(self.unique).varint(self.direct_min);
        writer.varint(self.silence_ms).varint(self.call_bytes);
        writer.varint(self.radix.into());
        writer.u8(self.address.is_some().into());
        if let Some(address) = &self.address {
            put_address(writer, address);
        }
    }

    fn get(reader: &mut Reader<'_>) -> std::result::Result<Self, BadMessage> {
        Ok(Self {
            unique: reader.u64()?,
            direct_min: reader.varint()?,
            silence_ms: reader.varint()?,
            call_bytes: reader.varint()?,
            radix: u32::try_from(reader.varint()?)
                .map_err(|_| reader.fault("with a radix of too many branches"))?,
            address: match reader.raw()? {
                [0] => None,
                _ => Some(get_address(reader)?),
            },
        })
    }
}

/// Of each lane.
impl Contribution for Vec<Told> {
    fn put(&self, writer: &mut Writer) {
        writer.varint(self.len() as u64);
        for told in self {
            told.put(writer);
        }
    }

    fn get(reader: &mut Reader<'_>) -> std::result::Result<Self, BadMessage> {
        let count = reader.varint()?;
        if count > LANES_MAX {
            return Err(reader.fault("of too many service processes"));
        }
        (0..count).map(|_| Told::get(reader)).collect()
    }
}

impl Told {
    /// A rank's knowledge of its SP, with the SP's addresses or without.
    pub(crate) fn of(welcome: &Welcome, has_address: bool) -> Self {
        Self {
            unique: welcome.service.unique,
            direct_min: welcome.direct_min,
            silence_ms: welcome.silence_ms,
            call_bytes: welcome.call_bytes,
            radix: welcome.radix.0,
            address: has_address.then(|| welcome.service.clone()),
        }
    }
}

/// The SPs whose addresses no rank has told: one name may stand for several SPs.
pub(super) fn untold(all: &[Told]) -> Vec<u64> {
    let mut told: BTreeMap<u64, bool> = BTreeMap::new();
    for one in all {
        *told.entry(one.unique).or_default() |= one.address.is_some();
    }
    let untold = told.into_iter().filter(|(_, is_told)| !is_told);
    untold.map(|(unique, _)| unique).collect()
}

/// Adds addresses that were told later.
pub(super) fn complete(all: &mut [Told], later: Vec<Told>) {
    for (one, later) in all.iter_mut().zip(later) {
        one.address = one.address.take().or(later.address);
    }
}

/// Detects ranks that were started with options different from those of rank 0. Returns the job's identifier.
pub(super) fn agree(ranks: &[Introduction]) -> Result<JobId> {
    let Some(first) = ranks.first() else {
        return Err(OffloadError::Exchange("there is no rank".into()));
    };
    for (place, rank) in (0..).zip(ranks) {
        check_same("number of ranks", place, &rank.size, &first.size)?;
        check_same("scheme", place, &rank.scheme, &first.scheme)?;
        if rank.rank != place {
            return Err(OffloadError::Arguments(format!(
                "the exchange answers for rank {} in place {place}",
                rank.rank
            )));
        }
    }
    if first.size as usize != ranks.len() || first.size > RANKS_MAX {
        return Err(OffloadError::Arguments(format!(
            "the number of ranks is given as {}, and {} take part (the most is {RANKS_MAX})",
            first.size,
            ranks.len()
        )));
    }
    first
        .job
        .ok_or_else(|| OffloadError::Exchange("rank 0 does not name the job".into()))
}

fn check_same<T: PartialEq + Debug>(
    what: &'static str,
    rank: u32,
    theirs: &T,
    first: &T,
) -> Result<()> {
    if theirs == first {
        return Ok(());
    }
    Err(OffloadError::Disagree {
        what,
        rank,
        theirs: format!("{theirs:?}"),
        first: format!("{first:?}"),
    })
}

/// Builds the table of each lane. The SPs of all lanes have the same options.
pub(super) fn tabulate_all(lanes: &[Vec<Told>]) -> Result<Vec<Table>> {
    let firsts: Vec<Told> = lanes
        .iter()
        .filter_map(|told| told.first())
        .cloned()
        .collect();
    for told in &firsts {
        agree_on_options(0, told, &firsts[0])?;
    }
    lanes.iter().map(|told| tabulate(told)).collect()
}

fn agree_on_options(rank: u32, told: &Told, first: &Told) -> Result<()> {
    let what = "direct-min of the services";
    check_same(what, rank, &told.direct_min, &first.direct_min)?;
    let what = "silence-limit of the services, in ms";
    check_same(what, rank, &told.silence_ms, &first.silence_ms)?;
    let what = "radix of the services (0: the default)";
    check_same(what, rank, &told.radix, &first.radix)
}

/// Builds the table identically on all ranks: SPs in the order of the first rank that each serves.
pub(crate) fn tabulate(all: &[Told]) -> Result<Table> {
    let mut addresses: BTreeMap<u64, &ServiceAddress> = BTreeMap::new();
    for address in all.iter().filter_map(|told| told.address.as_ref()) {
        addresses.entry(address.unique).or_insert(address);
    }
    let mut services: Vec<ServiceAddress> = Vec::new();
    let mut places: BTreeMap<u64, u32> = BTreeMap::new();
    let mut service_of = Vec::new();
    for (rank, told) in (0..).zip(all) {
        agree_on_options(rank, told, &all[0])?;
        let next = u32::try_from(services.len()).unwrap_or(u32::MAX);
        let place = *places.entry(told.unique).or_insert(next);
        if place == next {
            let address = addresses.get(&told.unique).copied();
            let address = address.ok_or_else(|| {
                OffloadError::Exchange(
                    format!("no rank tells the addresses of rank {rank}'s service").into(),
                )
            })?;
            services.push(address.clone());
        }
        service_of.push(place);
    }
    Ok(Table {
        services,
        service_of,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::radix::Radix;
    use crate::token::Token;

    /// An exchange with other ranks that send these bytes.
    struct Others(Vec<Vec<u8>>);

    impl Exchange for Others {
        fn allgather(
            &mut self,
            mine: &[u8],
        ) -> std::result::Result<Vec<Vec<u8>>, Box<dyn std::error::Error + Send + Sync>> {
            let mut all = vec![mine.to_vec()];
            all.append(&mut self.0);
            Ok(all)
        }
    }

    fn me() -> Introduction {
        Introduction {
            rank: 0,
            size: 2,
            scheme: Scheme::Xgvmi,
            place: place("n0", &["dpu0:7700".to_owned()]),
            services: 1,
            least: 8,
            job: Some(JobId(7)),
        }
    }

    fn welcome(unique: u64) -> Welcome {
        Welcome {
            service: ServiceAddress {
                unique,
                tcp: "dpu0:7700".to_owned(),
                worker: vec![3; 500],
            },
            token: Token([1; 16]),
            direct_min: 512,
            silence_ms: 20_000,
            accepted: 0,
            call_bytes: 1 << 25,
            imports: 16,
            radix: Radix::default(),
        }
    }

    #[test]
    fn a_rank_of_another_version_is_named_in_one_line() {
        let newer = [&MAGIC[..], &(PROTOCOL + 1).to_le_bytes(), &[0; 20]].concat();
        let older = br#"{"protocol":7,"rank":1,"size":2}"#.to_vec();
        let is_newer = format!(
            "rank 1 has version {} of the offload's protocol, and this rank {PROTOCOL}",
            PROTOCOL + 1
        );
        for (bytes, expect) in [
            (newer, is_newer.as_str()),
            (
                older,
                "rank 1 has a version of the offload's protocol before",
            ),
            (
                b"GET / HTTP/1.1".to_vec(),
                "rank 1 is no rank of the offload",
            ),
            (Vec::new(), "rank 1 is no rank of the offload"),
            (
                [&MAGIC[..], &PROTOCOL.to_le_bytes(), &[1]].concat(),
                "rank 1 sends a contribution of a rank of 9 bytes",
            ),
        ] {
            let error = share(&mut Others(vec![bytes]), &me()).expect_err("another version");
            let error = error.to_string();
            assert!(error.contains(expect) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn contributions_are_short_and_survive_the_exchange() {
        let other = Introduction {
            rank: 1,
            job: None,
            ..me()
        };
        let mut writer = Writer::default();
        writer.raw(&MAGIC).u32(PROTOCOL);
        other.put(&mut writer);
        let bytes = writer.finish();
        assert!(bytes.len() <= 32, "{} bytes", bytes.len());
        let all = share(&mut Others(vec![bytes]), &me()).expect("read");
        assert_eq!(all, [me(), other]);
        assert_eq!(agree(&all).expect("they agree"), JobId(7));
        let mine: Met<Told> = Ok(Told::of(&welcome(5), true));
        let unmet: Met<Told> = Err(Unmet {
            reason: "why".to_owned(),
            late: true,
        });
        let mut writer = Writer::default();
        writer.raw(&MAGIC).u32(PROTOCOL);
        unmet.put(&mut writer);
        let all = share(&mut Others(vec![writer.finish()]), &mine).expect("read");
        assert_eq!(all, [mine, unmet]);
    }

    #[test]
    fn one_rank_tells_the_addresses_of_a_service() {
        let (brief, long) = (Told::of(&welcome(5), false), Told::of(&welcome(5), true));
        let mut writer = Writer::default();
        brief.put(&mut writer);
        assert!(writer.finish().len() < 24);
        let mut all = vec![long.clone(), brief.clone(), Told::of(&welcome(6), false)];
        assert_eq!(untold(&all), [6]);
        assert!(tabulate(&all).is_err());
        complete(
            &mut all,
            vec![brief.clone(), brief, Told::of(&welcome(6), true)],
        );
        assert_eq!(untold(&all), [0; 0]);
        let table = tabulate(&all).expect("told");
        assert_eq!((table.services.len(), table.service_of), (2, vec![0, 0, 1]));
        assert_eq!(table.services[0], welcome(5).service);
    }

    #[test]
    fn services_of_another_radix_are_named_in_one_line() {
        let other = Welcome {
            radix: Radix(8),
            ..welcome(6)
        };
        let all = [Told::of(&welcome(5), true), Told::of(&other, true)];
        let error = tabulate(&all).expect_err("they differ").to_string();
        assert!(error.contains("radix of the services") && error.contains("rank 1"));
        assert!(!error.contains('\n'), "{error}");
    }

    #[test]
    fn ranks_that_were_started_differently_are_named() {
        let other = Introduction {
            rank: 1,
            job: None,
            ..me()
        };
        for (change, expect) in [
            (
                Introduction {
                    size: 3,
                    ..other.clone()
                },
                "number of ranks",
            ),
            (
                Introduction {
                    scheme: Scheme::Ksm,
                    ..other.clone()
                },
                "scheme",
            ),
            (
                Introduction {
                    rank: 0,
                    ..other.clone()
                },
                "answers for rank 0 in place 1",
            ),
        ] {
            let error = agree(&[me(), change]).expect_err("they differ").to_string();
            assert!(error.contains(expect), "{error}");
        }
    }
}
