//! The independent decoder: golden bytes that were written down from the tables by hand, and the encoders of `mlx5-prm`
//! read by it. What the product posts on the emulated device is read by `tests/system/posted.rs`.

mod decode;

use decode::{Access, Command, Completion, Context, Klm, Stride, Translation, Umr, mask};
use mlx5_prm::umr::{UmrContext, UmrCtrl};
use mlx5_prm::wqe::Ctrl;
use mlx5_prm::{cmd, mkey, umr, xgvmi};

/// Bytes from hexadecimal digits; spaces are for the reader.
fn bytes(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(u8::is_ascii_hexdigit).collect();
    assert!(digits.len().is_multiple_of(2));
    let pair = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).expect("digits");
        u8::from_str_radix(text, 16).expect("digits")
    };
    digits.chunks(2).map(pair).collect()
}

/// Rights of a key that a transfer reads and writes.
const BOTH: Access = Access {
    local_read: false,
    local_write: true,
    remote_read: true,
    remote_write: true,
    atomic: false,
};

/// The request that libmlx5 writes for `IBV_WR_BIND_MW` of a type 1 window: control segment, UMR control segment,
/// context, one entry with its padding.
const STOCK_BIND: &str = "\
    00 0003 25  000048 0c  00 0000 08  00001234
    90 000000 0004 0000  00000000 203c2041
    0000000000000000 0000000000000000 0000000000000000 0000000000000000
    00 00 38 00  ffffff fb  00000000 00000000  00007f0000001000 0000000000004000
    00000000  00000000 00000000 00000000 00000000  00000000  000000 00 00000000
    00004000 00005678 00007f0000001000
    00000000 00000000 0000000000000000
    00000000 00000000 0000000000000000
    00000000 00000000 0000000000000000";

#[test]
fn a_stock_bind_is_read() {
    let found = Umr::decode(&bytes(STOCK_BIND)).expect("a bind");
    assert_eq!(
        (found.index, found.queue_pair, found.key),
        (3, 0x48, 0x1234)
    );
    assert_eq!((found.fence, found.completion), (0, Completion::Always));
    assert!(found.inline && !found.check_free && !found.check_queue_pair);
    assert_eq!(found.translation_offset, Some(0));
    let changed = mask::FREE
        | mask::VARIANT
        | mask::LENGTH
        | mask::START
        | mask::LOCAL_WRITE
        | mask::REMOTE_READ
        | mask::REMOTE_WRITE
        | mask::ATOMIC;
    assert_eq!(found.mask, changed);
    assert_eq!(found.context.access, BOTH);
    assert_eq!(
        (found.context.queue_pair, found.context.variant),
        (0xff_ffff, 0xfb)
    );
    assert_eq!(
        (found.context.start, found.context.length),
        (0x7f00_0000_1000, 0x4000)
    );
    assert!(found.leaves_the_key_usable());
    let entry = Klm {
        byte_count: 0x4000,
        key: 0x5678,
        address: 0x7f00_0000_1000,
    };
    assert_eq!(found.translation, Translation::List(vec![entry]));
}

#[test]
fn an_invalidation_is_read() {
    let text = "\
        00 ffff 25  000048 08  00 0000 08  00001234
        20 000000 0000 0000  00000000 20000000
        0000000000000000 0000000000000000 0000000000000000 0000000000000000
        40 00 00 00  ffffff 00  00000000 00000000  0000000000000000 0000000000000000
        00000000  00000000 00000000 00000000 00000000  00000000  000000 00 00000000";
    let found = Umr::decode(&bytes(text)).expect("an invalidation");
    assert!(found.check_free && !found.inline && found.context.free);
    assert_eq!((found.mask, found.index), (mask::FREE, 0xffff));
    assert!(!found.leaves_the_key_usable());
    assert_eq!(found.translation, Translation::Unchanged);
}

#[test]
fn strided_and_long_lists_are_read() {
    // Control segments of a longer request, and a list in place of the stock bind's.
    let with = |units: u8, octowords: u8, list: &str| {
        let mut request = bytes(STOCK_BIND);
        request.truncate(128);
        (request[7], request[21]) = (units, octowords);
        request.extend(bytes(list));
        Umr::decode(&request).map(|umr| umr.translation)
    };
    let strided = "\
        00010000 00000400 00000010 0000 0002
        1000 0800 00005678 00007f0000001000
        1000 0800 00005679 00007f0000101000
        00000000 00000000 0000000000000000";
    let stride = |key, address| Stride {
        stride: 0x1000,
        byte_count: 0x800,
        key,
        address,
    };
    assert_eq!(
        with(12, 4, strided),
        Ok(Translation::Strided {
            byte_count: 0x1_0000,
            repeat_count: 16,
            entries: vec![
                stride(0x5678, 0x7f00_0000_1000),
                stride(0x5679, 0x7f00_0010_1000)
            ],
        })
    );
    let entry = "40000000 00005678 00007f0000001000 ";
    let list = format!("{}{}", entry.repeat(5), "00".repeat(48));
    match with(16, 8, &list) {
        Ok(Translation::List(entries)) => assert_eq!(entries.len(), 5),
        other => panic!("{other:?}"),
    }
    assert!(with(12, 8, &entry.repeat(4)).is_err(), "the lengths differ");
    assert!(with(11, 3, &entry.repeat(3)).is_err(), "not padded");
    assert!(with(7, 0, "").is_err(), "shorter than its segments");
}

#[test]
fn a_reserved_bit_is_refused() {
    let good = bytes(STOCK_BIND);
    // Opcode modifier; signature; reserved bytes of the UMR control segment.
    for at in [0, 8, 17, 19, 40, 63] {
        let mut bad = good.clone();
        bad[at] |= 1;
        assert!(Umr::decode(&bad).is_err(), "byte {at}");
    }
    assert!(Umr::decode(&good[..100]).is_err());
    let mut other = good;
    other[3] = 0x0a;
    assert!(Umr::decode(&other).is_err());
}

#[test]
fn the_encoders_write_what_the_tables_say() {
    let ctrl = Ctrl {
        index: 0xabcd,
        opcode: 0x25,
        qpn: 0x12_3456,
        ds: 12,
        flags: 0x28,
        imm: 0x89ab_cdef,
        ..Ctrl::default()
    };
    let control = UmrCtrl {
        flags: umr::flag::INLINE | umr::flag::CHECK_FREE | umr::flag::CHECK_QPN,
        klm_octowords: 4,
        translation_offset: 0,
        mkey_mask: umr::mask::LEN | umr::mask::QPN | umr::mask::BSF_ENABLE,
    };
    let context = UmrContext {
        free: true,
        access: umr::access::LOCAL_READ | umr::access::ATOMIC,
        qpn: 0x65_4321,
        variant: 0x77,
        start_addr: 0x1122_3344_5566_7788,
        len: 0x0102_0304_0506_0708,
        log_page_size: 21,
    };
    let entry = mkey::Klm {
        byte_count: 0x1000,
        mkey: 0x4444_4444,
        address: 0x5555_6666_7777_8888,
    };
    let mut request = ctrl.to_bytes().to_vec();
    request.extend(control.to_bytes());
    request.extend(context.to_bytes());
    request.extend(entry.to_bytes());
    request.resize(12 * 16, 0);
    let found = Umr::decode(&request).expect("a request");
    assert_eq!(
        (
            found.index,
            found.queue_pair,
            found.key,
            found.fence,
            found.completion
        ),
        (0xabcd, 0x12_3456, 0x89ab_cdef, 1, Completion::Always)
    );
    assert!(found.inline && found.check_free && found.check_queue_pair);
    assert_eq!(found.translation_offset, None);
    assert_eq!(
        found.mask,
        mask::LENGTH | mask::QUEUE_PAIR | mask::BSF_ENABLE
    );
    let expect = Context {
        free: true,
        umr_enabled: false,
        access: Access {
            local_read: true,
            atomic: true,
            ..Access::default()
        },
        access_mode: 0,
        queue_pair: 0x65_4321,
        variant: 0x77,
        length64: false,
        protection_domain: 0,
        start: 0x1122_3344_5566_7788,
        length: 0x0102_0304_0506_0708,
        bsf_octowords: 0,
        crossing_target_gvmi: 0,
        translation_octowords: 0,
        log_page_size: 21,
    };
    assert_eq!(found.context, expect);
    let klm = Klm {
        byte_count: 0x1000,
        key: 0x4444_4444,
        address: 0x5555_6666_7777_8888,
    };
    assert_eq!(found.translation, Translation::List(vec![klm]));
}

/// CREATE_MKEY of an indirect key for UMR with room for four entries: golden bytes, and the same by the encoder.
#[test]
fn create_mkey_is_read() {
    let mut mailbox = bytes(
        "0200 0000 0000 0000  00000000 00000000
         40 00 82 00  ffffff 42  00000000 00000009  0000000000000000 0000000000000000
         00000000  00000000 00000000 00000000 00000000  00000004  000000 00 00000000",
    );
    mailbox.resize(0x110, 0);
    let found = Command::decode(&mailbox).expect("a command");
    let Some(Command::CreateMkey {
        context,
        umem,
        translation_octowords,
        list,
    }) = found
    else {
        panic!("{found:?}");
    };
    assert!(context.free && context.umr_enabled && !context.length64);
    assert_eq!(
        (context.access_mode, context.access),
        (2, Access::default())
    );
    assert_eq!((context.queue_pair, context.variant), (0xff_ffff, 0x42));
    assert_eq!(
        (context.protection_domain, context.translation_octowords),
        (9, 4)
    );
    assert_eq!((umem, translation_octowords, list.len()), (None, 0, 0));

    let mut encoded = vec![0; 0x110];
    assert!(cmd::OPCODE.set(&mut encoded, u64::from(cmd::opcode::CREATE_MKEY)));
    let at = mkey::CREATE_CONTEXT_AT;
    for (field, value) in [
        (mkey::FREE, 1),
        (mkey::UMR_EN, 1),
        (mkey::ACCESS_MODE_1_0, u64::from(mkey::access_mode::KLMS)),
        (mkey::QPN, u64::from(mkey::QPN_ANY)),
        (mkey::VARIANT, 0x42),
        (mkey::PD, 9),
        (mkey::TRANSLATIONS_OCTWORDS, 4),
    ] {
        assert!(field.set(&mut encoded[at..], value));
    }
    assert_eq!(encoded, mailbox);
}

#[test]
fn allow_and_alias_are_read() {
    let key: [u8; 32] = std::array::from_fn(|at| u8::try_from(at).expect("32 bytes"));
    let mut mailbox = bytes("0b16 0000 0000 0000 00000000 00000000 0000 ff01 00001234");
    mailbox.resize(32, 0);
    mailbox.extend(key);
    let allow = Command::AllowOtherVhcaAccess {
        object_type: 0xff01,
        object: 0x1234,
        access_key: key,
    };
    assert_eq!(Command::decode(&mailbox), Ok(Some(allow)));
    let mut encoded = vec![0; xgvmi::allow::IN_BYTES];
    for (field, value) in [
        (cmd::OPCODE, u64::from(cmd::opcode::ALLOW_OTHER_VHCA_ACCESS)),
        (
            xgvmi::allow::OBJECT_TYPE,
            u64::from(xgvmi::OBJECT_TYPE_MKEY),
        ),
        (xgvmi::allow::OBJECT_ID, 0x1234),
    ] {
        assert!(field.set(&mut encoded, value));
    }
    encoded[xgvmi::allow::ACCESS_KEY_AT..][..32].copy_from_slice(&key);
    assert_eq!(encoded, mailbox);

    let mut mailbox = bytes("0a00 0000 0000 ff01 00000000 80000000 0007 0000 00001234");
    mailbox.resize(32, 0);
    mailbox.extend(key);
    mailbox.extend(bytes("00000009 00000000 00000000 00000000"));
    let alias = Command::CreateAlias {
        object_type: 0xff01,
        vhca: 7,
        object: 0x1234,
        access_key: key,
        protection_domain: 9,
    };
    assert_eq!(Command::decode(&mailbox), Ok(Some(alias)));
    let mut encoded = vec![0; xgvmi::alias::IN_BYTES];
    for (field, value) in [
        (cmd::OPCODE, u64::from(cmd::opcode::CREATE_GENERAL_OBJECT)),
        (cmd::GENERAL_OBJECT_TYPE, u64::from(xgvmi::OBJECT_TYPE_MKEY)),
        (cmd::GENERAL_OBJECT_ALIAS, 1),
        (xgvmi::alias::VHCA_ID, 7),
        (xgvmi::alias::OBJECT_ID, 0x1234),
        (xgvmi::alias::METADATA_1, 9),
    ] {
        assert!(field.set(&mut encoded, value));
    }
    encoded[xgvmi::alias::ACCESS_KEY_AT..][..32].copy_from_slice(&key);
    assert_eq!(encoded, mailbox);
    mailbox[12] |= 1;
    assert!(Command::decode(&mailbox).is_err());
    assert_eq!(Command::decode(&bytes(&"00".repeat(16))), Ok(None));
}
