//! The parts of each layout against Debian's `libisal2`: the same parity bytes, and its own restoring of each loss.

use libloading::{Library, Symbol};
use std::sync::Arc;
use xgvmi_blk::block::{Kind, encode, restore};
use xgvmi_blk::store::NewTarget;
use xgvmi_blk::{Geometry, Id, Layout, Role, Store, Target, Volume};

type Matrix = unsafe extern "C" fn(*mut u8, i32, i32);
type Tables = unsafe extern "C" fn(i32, i32, *const u8, *mut u8);
type Encode = unsafe extern "C" fn(i32, i32, i32, *const u8, *const *const u8, *const *mut u8);

/// Stock functions: `gf_gen_cauchy1_matrix`, `ec_init_tables` and `ec_encode_data_base`.
struct Isal(Library);

impl Isal {
    fn load() -> Self {
        // SAFETY: the library has no initializer with conditions.
        let library = unsafe { Library::new("libisal.so.2") };
        Self(library.expect("stock ISA-L judges: apt-get install libisal2"))
    }

    fn function<T>(&self, name: &str) -> Symbol<'_, T> {
        // SAFETY: the types are those of its headers erasure_code.h and gf_vect_mul.h.
        unsafe { self.0.get(name.as_bytes()) }.unwrap()
    }

    /// Parities of parts of data of one length.
    fn parities(&self, data: &[Vec<u8>], count: usize) -> Vec<Vec<u8>> {
        let (needed, all) = (data.len(), data.len() + count);
        let [k, rows, m] = [needed, count, all].map(|number| i32::try_from(number).unwrap());
        let length = data[0].len();
        let mut matrix = vec![0; all * needed];
        let mut tables = vec![0; 32 * needed * count];
        let mut parities = vec![vec![0; length]; count];
        let sources: Vec<*const u8> = data.iter().map(|part| part.as_ptr()).collect();
        let sinks: Vec<*mut u8> = parities.iter_mut().map(Vec::as_mut_ptr).collect();
        // SAFETY: the matrix has `all` rows of `needed` bytes, the tables 32 bytes for each of its last rows' bytes, and all
        // parts have `length` bytes.
        unsafe {
            self.function::<Matrix>("gf_gen_cauchy1_matrix")(matrix.as_mut_ptr(), m, k);
            let rows_at = matrix[needed * needed..].as_ptr();
            self.function::<Tables>("ec_init_tables")(k, rows, rows_at, tables.as_mut_ptr());
            let length = i32::try_from(length).unwrap();
            let (tables, sources) = (tables.as_ptr(), sources.as_ptr());
            self.function::<Encode>("ec_encode_data")(
                length,
                k,
                rows,
                tables,
                sources,
                sinks.as_ptr(),
            );
        }
        parities
    }
}

fn layouts() -> impl Iterator<Item = Layout> {
    let all = (2..=8).flat_map(|data| (1..=3).map(move |parity| (data, parity)));
    all.filter_map(|(data, parity)| Layout::new(data, parity))
}

/// Bytes that LZ4 does not shorten.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..length).map(|_| random.u8(..)).collect()
}

#[test]
fn parities_are_those_of_libisal() {
    let isal = Isal::load();
    for layout in layouts() {
        for size in [64, 1024, 4096, 64 * 65] {
            let encoded = encode(layout, &noise(size, layout.targets() as u64));
            assert_eq!(encoded.kind, Kind::Raw);
            let length = encoded.parts[0].len();
            let data = encoded.parts.iter().take(layout.needed());
            let mut data: Vec<Vec<u8>> = data.map(|part| part.to_vec()).collect();
            data.iter_mut().for_each(|part| part.resize(length, 0));
            let parities = &encoded.parts[layout.needed()..];
            let stock = isal.parities(&data, layout.spare());
            if layout == Layout::HALVES {
                // It keeps its exclusive or.
                assert_ne!(parities, stock);
                assert_eq!(parities[0], xgvmi_blk::block::xor(&data[0], &data[1]));
                continue;
            }
            assert!(parities == stock, "{layout} with blocks of {size} bytes");
        }
    }
}

/// Each loss of up to as many parts as there are parities.
#[test]
fn each_loss_is_restored() {
    let mirrors = [1, 2].map(|parity| Layout::new(1, parity).unwrap());
    let mut losses = 0;
    for layout in layouts().chain(mirrors) {
        for size in [64, 4096] {
            let encoded = encode(layout, &noise(size, 5));
            for lost in 1..1u32 << layout.targets() {
                if lost.count_ones() as usize > layout.spare() {
                    continue;
                }
                let left = |at: usize| (lost >> at & 1 == 0).then(|| &encoded.parts[at][..]);
                let left: Vec<Option<&[u8]>> = (0..layout.targets()).map(left).collect();
                for role in layout.roles().filter(|role| lost >> role.index() & 1 == 1) {
                    let back = restore(role, encoded.stored, &left).unwrap();
                    assert!(
                        back == encoded.parts[role.index()],
                        "{layout} {lost:b} {role}"
                    );
                }
                losses += 1;
            }
            let few: Vec<Option<&[u8]>> = layout
                .roles()
                .map(|role| {
                    (role.index() + 1 < layout.needed()).then(|| &encoded.parts[role.index()][..])
                })
                .collect();
            let last = layout.roles().last().unwrap();
            assert!(restore(last, encoded.stored, &few).is_err(), "{layout}");
        }
    }
    assert!(losses > 1500, "{losses}");
}

/// What a volume's targets have on disk: parities of the parts of data beside them.
#[test]
fn parities_on_disk_are_those_of_libisal() {
    let isal = Isal::load();
    for text in ["3+2", "4+2", "8+3"] {
        let layout: Layout = text.parse().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = |role: Role| dir.path().join(role.to_string());
        let geometry = Geometry::of_size(4096, 64 << 10).unwrap();
        let create = |role| -> Arc<dyn Target> {
            let new = NewTarget {
                geometry,
                role,
                volume: Id([7; 16]),
                complete: true,
            };
            Arc::new(Store::create_file(&path(role), new, None).unwrap())
        };
        let volume = Volume::open(layout.roles().map(create).collect()).unwrap();
        let bytes = noise(64 << 10, 9);
        volume.write(0, &bytes).unwrap();
        volume.close().unwrap();
        drop(volume);
        let open = |role| Store::open_file(&path(role), None).unwrap();
        let stores: Vec<Store> = layout.roles().map(open).collect();
        for block in 0..16u64 {
            let part = |store: &Store| {
                let held = store.part(block..block + 1).unwrap().held;
                let newest = held.iter().map(|held| held.generation).max().unwrap();
                store.fetch(block, newest).unwrap().data
            };
            let parts: Vec<Vec<u8>> = stores.iter().map(|store| part(store).to_vec()).collect();
            let mut data = parts[..layout.needed()].to_vec();
            let at = usize::try_from(block).unwrap() * 4096;
            assert_eq!(data.concat(), bytes[at..at + 4096], "{layout}");
            let length = data[0].len();
            data.iter_mut().for_each(|part| part.resize(length, 0));
            let stock = isal.parities(&data, layout.spare());
            assert!(parts[layout.needed()..] == stock, "{layout} block {block}");
        }
    }
}
