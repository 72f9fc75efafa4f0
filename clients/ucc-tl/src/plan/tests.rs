//! Plans of each collective, at each of its ranks.

use super::*;
use xgvmi_offload::{Element, Operation, Reduction};

const BYTES: [usize; DATATYPES] = [1, 2, 4, 8, 16, 1, 2, 4, 8, 16, 2, 4, 8, 2, 16, 8, 16, 32];
const INT32: ucc_datatype_t = 2 << 3;
const SRC: *mut u8 = 0x10000 as *mut u8;
const DST: *mut u8 = 0x20000 as *mut u8;

fn info(buffer: *mut u8, count: u64) -> ucc_coll_buffer_info_t {
    ucc_coll_buffer_info_t {
        buffer: buffer.cast(),
        count,
        datatype: INT32,
        mem_type: b::UCC_MEMORY_TYPE_HOST,
    }
}

fn info_v<C, D>(buffer: *mut u8, counts: &[C], displacements: &[D]) -> ucc_coll_buffer_info_v_t {
    ucc_coll_buffer_info_v_t {
        buffer: buffer.cast(),
        counts: counts.as_ptr().cast_mut().cast(),
        displacements: displacements.as_ptr().cast_mut().cast(),
        datatype: INT32,
        mem_type: b::UCC_MEMORY_TYPE_HOST,
    }
}

fn args(kind: b::ucc_coll_type_t, flags: u32, root: u64) -> ucc_coll_args_t {
    ucc_coll_args_t {
        mask: b::UCC_COLL_ARGS_FIELD_FLAGS.into(),
        coll_type: kind,
        flags: flags.into(),
        root,
        ..Default::default()
    }
}

fn any_plan(args: &ucc_coll_args_t, rank: usize) -> Result<Plan, Refused> {
    let caller = Caller {
        rank,
        size: 3,
        datatype_bytes: &BYTES,
    };
    // SAFETY: the tests' arrays have three entries.
    unsafe { Plan::new(args, caller) }
}

fn plan(args: &ucc_coll_args_t, rank: usize) -> Result<Exchange, Refused> {
    match any_plan(args, rank)? {
        Plan::Exchange(exchange) => Ok(exchange),
        other => panic!("{other:?}"),
    }
}

/// Compares start, length, and (rank, count, displacement) of the non-empty blocks.
fn check(side: &Side, start: *mut u8, length: usize, blocks: &[(usize, usize, usize)]) {
    let found: Vec<(usize, usize, usize)> = (0..)
        .zip(side.blocks())
        .filter(|(_, (count, _))| *count > 0)
        .map(|(rank, (count, displacement))| (rank, count, displacement))
        .collect();
    assert_eq!(
        (side.start, side.length, found.as_slice()),
        (start, length, blocks)
    );
}

fn empty(side: &Side) {
    assert!(side.blocks().all(|(count, _)| count == 0), "{side:?}");
}

/// Persistent collectives keep their plans.
#[test]
fn even_blocks_take_no_memory_of_their_own() {
    let is_listed = |counts: &[u32], displacements: &[u32]| {
        let mut args = args(b::UCC_COLL_TYPE_ALLTOALLV, 0, 0);
        args.src.info_v = info_v(SRC, counts, displacements);
        args.dst.info_v = info_v(DST, &[1_u32; 3], &[0_u32, 1, 2]);
        let made = plan(&args, 1).expect("served");
        assert!(!matches!(made.receive.blocks, Blocks::Listed(_)));
        let expect: Vec<(usize, usize)> = counts
            .iter()
            .zip(displacements)
            .map(|(count, place)| (*count as usize * 4, *place as usize * 4))
            .collect();
        assert_eq!(made.send.blocks().collect::<Vec<_>>(), expect);
        matches!(made.send.blocks, Blocks::Listed(_))
    };
    assert!(!is_listed(&[2; 3], &[0, 2, 4]));
    assert!(!is_listed(&[2; 3], &[0, 0, 0]));
    assert!(!is_listed(&[2; 3], &[0, 9, 18]));
    assert!(is_listed(&[2; 3], &[0, 2, 5]));
    assert!(is_listed(&[2, 2, 1], &[0, 2, 4]));
    assert!(is_listed(&[2; 3], &[4, 2, 0]));
}

#[test]
fn alltoall() {
    let mut args = args(b::UCC_COLL_TYPE_ALLTOALL, 0, 0);
    args.src.info = info(SRC, 6);
    args.dst.info = info(DST, 6);
    let all = [(0, 8, 0), (1, 8, 8), (2, 8, 16)];
    let made = plan(&args, 1).expect("served");
    check(&made.send, SRC, 24, &all);
    check(&made.receive, DST, 24, &all);
    assert_eq!(made.way, Way::All);
    args.flags = b::UCC_COLL_ARGS_FLAG_IN_PLACE.into();
    let made = plan(&args, 1).expect("served");
    check(&made.receive, DST, 24, &all);
    empty(&made.send);
    assert_eq!(made.way, Way::InPlace);
}

#[test]
fn alltoallv_of_both_widths() {
    let mut narrow = args(b::UCC_COLL_TYPE_ALLTOALLV, 0, 0);
    narrow.src.info_v = info_v(SRC, &[1_u32, 0, 2], &[0_u32, u32::MAX, 5]);
    narrow.dst.info_v = info_v(DST, &[0_u32, 0, 1], &[9_u32, 9, 9]);
    let made = plan(&narrow, 0).expect("served");
    check(&made.send, SRC, 28, &[(0, 4, 0), (2, 8, 20)]);
    check(&made.receive, DST.wrapping_add(36), 4, &[(2, 4, 0)]);
    let flags = b::UCC_COLL_ARGS_FLAG_COUNT_64BIT | b::UCC_COLL_ARGS_FLAG_DISPLACEMENTS_64BIT;
    let mut wide = args(b::UCC_COLL_TYPE_ALLTOALLV, flags, 0);
    wide.src.info_v = info_v(SRC, &[1_u64, 0, 2], &[0_u64, u64::MAX, 5]);
    wide.dst.info_v = info_v(DST, &[0_u64, 0, 1], &[9_u64, 9, 9]);
    assert_eq!(plan(&wide, 0).expect("served"), made);
    wide.src.info_v = info_v(SRC, &[u64::MAX, 0, 2], &[0_u64, 0, 5]);
    assert_eq!(plan(&wide, 0), Err(TOO_LONG));
}

#[test]
fn negative_displacements_lie_before_the_buffer() {
    let mut narrow = args(b::UCC_COLL_TYPE_ALLTOALLV, 0, 0);
    narrow.src.info_v = info_v(SRC, &[1_i32, 2, 1], &[-3, 4, 0]);
    narrow.dst.info_v = info_v(DST, &[1_i32, 0, 1], &[-1, i32::MIN, -2]);
    let made = plan(&narrow, 0).expect("served");
    let sends = [(0, 4, 0), (1, 8, 28), (2, 4, 12)];
    check(&made.send, SRC.wrapping_sub(12), 36, &sends);
    check(
        &made.receive,
        DST.wrapping_sub(8),
        8,
        &[(0, 4, 4), (2, 4, 0)],
    );
    let flags = b::UCC_COLL_ARGS_FLAG_DISPLACEMENTS_64BIT;
    let mut wide = args(b::UCC_COLL_TYPE_ALLTOALLV, flags, 0);
    wide.src.info_v = info_v(SRC, &[1_i32, 2, 1], &[-3_i64, 4, 0]);
    wide.dst.info_v = info_v(DST, &[1_i32, 0, 1], &[-1_i64, i64::MIN, -2]);
    assert_eq!(plan(&wide, 0).expect("served"), made);
}

#[test]
fn allgather_and_in_place() {
    let mut args = args(b::UCC_COLL_TYPE_ALLGATHER, 0, 0);
    args.src.info = info(SRC, 2);
    args.dst.info = info(DST, 6);
    let made = plan(&args, 2).expect("served");
    check(&made.send, SRC, 8, &[(0, 8, 0), (1, 8, 0), (2, 8, 0)]);
    check(&made.receive, DST, 24, &[(0, 8, 0), (1, 8, 8), (2, 8, 16)]);
    args.flags = b::UCC_COLL_ARGS_FLAG_IN_PLACE.into();
    let made = plan(&args, 2).expect("served");
    check(&made.send, DST.wrapping_add(16), 8, &[(0, 8, 0), (1, 8, 0)]);
    check(&made.receive, DST, 24, &[(0, 8, 0), (1, 8, 8)]);
    assert_eq!(made.way, Way::All);
}

#[test]
fn allgatherv_in_place() {
    let mut args = args(
        b::UCC_COLL_TYPE_ALLGATHERV,
        b::UCC_COLL_ARGS_FLAG_IN_PLACE,
        0,
    );
    args.dst.info_v = info_v(DST, &[1_u32, 2, 0], &[0_u32, 4, 0]);
    let made = plan(&args, 1).expect("served");
    check(&made.send, DST.wrapping_add(16), 8, &[(0, 8, 0), (2, 8, 0)]);
    check(&made.receive, DST, 24, &[(0, 4, 0)]);
    empty(&plan(&args, 2).expect("served").send);
}

#[test]
fn bcast_has_one_buffer_at_each_rank() {
    let mut args = args(b::UCC_COLL_TYPE_BCAST, 0, 1);
    args.src.info = info(SRC, 2);
    let expect = Plan::Broadcast(Broadcast {
        start: SRC,
        length: 8,
        root: 1,
    });
    for rank in 0..3 {
        assert_eq!(any_plan(&args, rank), Ok(expect.clone()));
    }
    args.root = 3;
    assert!(any_plan(&args, 0).is_err());
}

#[test]
fn gather_and_scatter_with_and_without_a_copy_at_the_root() {
    let mut gather = args(b::UCC_COLL_TYPE_GATHER, 0, 0);
    gather.src.info = info(SRC, 2);
    gather.dst.info = info(DST, 6);
    check(
        &plan(&gather, 2).expect("served").send,
        SRC,
        8,
        &[(0, 8, 0)],
    );
    let all = [(0, 8, 0), (1, 8, 8), (2, 8, 16)];
    check(&plan(&gather, 0).expect("served").receive, DST, 24, &all);
    gather.flags = b::UCC_COLL_ARGS_FLAG_IN_PLACE.into();
    let root = plan(&gather, 0).expect("served");
    assert_eq!(root.way, Way::Gather(0));
    check(&root.receive, DST, 24, &all[1..]);
    empty(&root.send);
    let mut scatter = args(b::UCC_COLL_TYPE_SCATTERV, 0, 0);
    scatter.src.info_v = info_v(SRC, &[1_u32, 2, 3], &[0_u32, 1, 3]);
    scatter.dst.info = info(DST, 2);
    let root = plan(&scatter, 0).expect("served");
    check(&root.send, SRC, 24, &[(0, 4, 0), (1, 8, 4), (2, 12, 12)]);
    scatter.flags = b::UCC_COLL_ARGS_FLAG_IN_PLACE.into();
    let root = plan(&scatter, 0).expect("served");
    assert_eq!(root.way, Way::Scatter(0));
    check(&root.send, SRC, 24, &[(1, 8, 4), (2, 12, 12)]);
    empty(&root.receive);
    check(
        &plan(&scatter, 1).expect("served").receive,
        DST,
        8,
        &[(0, 8, 0)],
    );
}

#[test]
fn what_is_not_served_is_refused() {
    let refused = |change: &dyn Fn(&mut ucc_coll_args_t)| {
        let mut args = args(b::UCC_COLL_TYPE_ALLTOALL, 0, 0);
        args.src.info = info(SRC, 6);
        args.dst.info = info(DST, 6);
        change(&mut args);
        plan(&args, 0).expect_err("refused").0
    };
    assert_eq!(
        refused(&|args| args.src.info.datatype = 1),
        "a generic datatype"
    );
    assert_eq!(
        refused(&|args| args.dst.info.datatype = 99 << 3),
        "a datatype of a newer UCC"
    );
    assert_eq!(
        refused(&|args| args.dst.info.mem_type = 1),
        "memory of a GPU (cuda)"
    );
    assert_eq!(
        refused(&|args| args.flags = b::UCC_COLL_ARGS_FLAG_MEM_MAPPED_BUFFERS.into()),
        "memory handles of the caller"
    );
    assert_eq!(
        refused(&|args| args.coll_type = b::UCC_COLL_TYPE_FANIN),
        "a collective that the component does not know"
    );
}

fn reduce_of(args: &ucc_coll_args_t, rank: usize) -> Result<Reduce, &'static str> {
    match any_plan(args, rank) {
        Ok(Plan::Reduce(reduce)) => Ok(reduce),
        Ok(other) => panic!("{other:?}"),
        Err(Refused(why)) => Err(why),
    }
}

#[test]
fn allreduce_of_known_datatypes_and_operations() {
    let mut args = args(b::UCC_COLL_TYPE_ALLREDUCE, 0, 0);
    args.src.info = info(SRC, 6);
    args.dst.info = info(DST, 6);
    args.op = b::UCC_OP_MAX;
    let made = |args: &ucc_coll_args_t| reduce_of(args, 1);
    let mut expect = Reduce {
        send: SRC,
        receive: DST,
        length: 24,
        received: 24,
        reduction: Reduction::new(Element::I32, Operation::Max).expect("defined"),
        goal: Goal::All,
    };
    assert_eq!(made(&args), Ok(expect.clone()));
    args.flags = b::UCC_COLL_ARGS_FLAG_IN_PLACE.into();
    expect.send = std::ptr::null_mut();
    assert_eq!(made(&args), Ok(expect));
    let has = "a reduction that its datatype does not have";
    args.op = b::UCC_OP_AVG;
    assert_eq!(made(&args), Err(has));
    for number in [10, 11, 12, 13, 15, 16] {
        args.dst.info.datatype = number << 3;
        assert!(made(&args).is_ok(), "an average of datatype {number}");
    }
    args.op = b::UCC_OP_MAXLOC;
    let computes = "a reduction that the services do not compute";
    assert_eq!(made(&args), Err(computes));
    args.op = b::UCC_OP_BOR;
    assert_eq!(made(&args), Err(has));
    args.op = b::UCC_OP_MAX;
    for number in [15, 16] {
        args.dst.info.datatype = number << 3;
        assert_eq!(made(&args), Err(has), "complex numbers have no order");
    }
    // 128 bits.
    for number in [4, 9, 14, 17] {
        args.dst.info.datatype = number << 3;
        assert!(made(&args).is_err_and(|why| why.contains("datatype")));
    }
    args.flags = 0;
    args.dst.info = info(DST, 5);
    assert_eq!(made(&args), Err("buffers of two lengths or datatypes"));
}

#[test]
fn the_root_of_a_reduce_alone_has_a_second_buffer() {
    let mut args = args(b::UCC_COLL_TYPE_REDUCE, 0, 2);
    args.src.info = info(SRC, 6);
    args.dst.info = info(DST, 6);
    let buffers = |args: &ucc_coll_args_t, rank| {
        reduce_of(args, rank).map(|of| (of.send, of.receive, of.length, of.received, of.goal))
    };
    let none = std::ptr::null_mut();
    let root = Goal::Root(2);
    assert_eq!(buffers(&args, 2), Ok((SRC, DST, 24, 24, root.clone())));
    args.flags = b::UCC_COLL_ARGS_FLAG_IN_PLACE.into();
    assert_eq!(buffers(&args, 2), Ok((none, DST, 24, 24, root.clone())));
    args.flags = 0;
    args.dst.info = info(none, 0);
    assert_eq!(buffers(&args, 0), Ok((SRC, none, 24, 0, root)));
    args.root = 3;
    assert_eq!(buffers(&args, 0), Err("a root outside the team"));
}

#[test]
fn the_ranks_of_a_reduce_scatter_get_their_counts() {
    let mut even = args(b::UCC_COLL_TYPE_REDUCE_SCATTER, 0, 0);
    even.src.info = info(SRC, 6);
    even.dst.info = info(DST, 2);
    let made = reduce_of(&even, 1).expect("served");
    assert_eq!((made.length, made.received), (24, 8));
    assert_eq!(made.goal, Goal::Each(vec![8; 3]));
    even.dst.info = info(DST, 3);
    assert_eq!(
        reduce_of(&even, 1),
        Err("buffers of two lengths or datatypes")
    );
    even.flags = b::UCC_COLL_ARGS_FLAG_IN_PLACE.into();
    even.dst.info = info(DST, 6);
    let made = reduce_of(&even, 1).expect("served");
    assert_eq!((made.send, made.length), (DST, 24));
    assert_eq!((made.receive, made.received), (DST.wrapping_add(8), 8));
    even.dst.info = info(DST, 7);
    let rest = "a part of the result for each member, and a rest";
    assert_eq!(reduce_of(&even, 1), Err(rest));
    let mut listed = args(b::UCC_COLL_TYPE_REDUCE_SCATTERV, 0, 0);
    listed.src.info = info(SRC, 6);
    let counts = [5_u32, 0, 1];
    listed.dst.info_v = info_v::<u32, u32>(DST, &counts, &[]);
    let made = reduce_of(&listed, 2).expect("served");
    assert_eq!((made.receive, made.received), (DST, 4));
    assert_eq!(made.goal, Goal::Each(vec![20, 0, 4]));
    listed.flags = b::UCC_COLL_ARGS_FLAG_IN_PLACE.into();
    assert_eq!(
        reduce_of(&listed, 2),
        Err("a reduce-scatter of several lengths in place")
    );
}
