# Forms of instructions that compilers rarely write: misaligned accesses, results for x0, links, compressed forms, counters.
    .text
    .globl main
main:
    la s0, place
    li a1, 0x8182838485868788
    # Each width at each offset.
    .irp at, 0, 1, 2, 3, 4, 5, 6, 7
    sd a1, \at(s0)
    lw a2, (7 - \at)(s0)
    lhu a3, (\at + 1)(s0)
    lb a4, (6 - \at)(s0)
    sw a2, (8 + \at)(s0)
    sh a3, (\at + 12)(s0)
    ld a5, (\at + 5)(s0)
    lwu a6, (\at + 3)(s0)
    lh a7, (9 - \at)(s0)
    sb a4, (14 - \at)(s0)
    xor s1, s1, a2
    add s1, s1, a3
    xor s1, s1, a4
    add s1, s1, a5
    xor s1, s1, a6
    add s1, s1, a7
    rol s1, s1, a1
    .endr
    # Results for x0 vanish.
    add x0, a1, a1
    lw x0, 0(s0)
    lui x0, 5
    jal x0, 1f
    li s1, 0
1:  amoadd.d x0, a1, (s0)
    ld s2, 0(s0)
    # Links, and a target with bit 0.
    la t0, 2f + 1
    jalr s3, 0(t0)
    li s1, 0
2:  auipc s4, 0
    auipc s5, 0xfffff
    sub s3, s4, s3
    sub s5, s4, s5
    # A link register that is the target register.
    la t1, 3f
    jalr t1, 0(t1)
    li s1, 0
3:  sub s6, t1, s4
    # Branches that are far and near, taken and not.
    li t2, -1
    bltu t2, x0, 5f
    blt t2, x0, 4f
    li s1, 0
4:  bgeu t2, x0, 5f
    li s1, 0
5:  beq t2, x0, main
    # Reservations.
    addi t3, s0, 16
    lr.d t4, (t3)
    addi t4, t4, 1
    sc.d s7, t4, (t3)
    sc.d s8, t4, (t3)
    lr.w t5, (t3)
    sc.w s9, t5, (t3)
    # Counters only grow.
    rdinstret t4
    rdinstret t5
    sltu s10, t4, t5
    rdcycle t4
    rdcycle t5
    sltu s11, t5, t4
    li t4, 0
    li t5, 0
    fence rw, w
    fence.i
    .word 0x0100000f # pause
    # Compressed forms.
    .option rvc
    c.addi16sp sp, -64
    c.addi4spn a2, sp, 16
    c.sdsp a1, 24(sp)
    c.swsp a1, 36(sp)
    c.ldsp a3, 24(sp)
    c.lwsp a4, 36(sp)
    c.li a5, -32
    c.lui a0, 0xfffe0
    c.srai a5, 2
    c.srli a4, 33
    c.andi a4, 31
    c.subw a3, a5
    c.addw a3, a4
    c.xor a3, a0
    c.or a4, a3
    c.and a4, a0
    c.mv a2, a3
    c.sub a2, a3
    c.addi a2, 1
    c.slli a2, 40
    c.mv a6, a3
    c.add a6, a4
    c.addiw a6, -1
    c.beqz a2, main
    c.bnez a2, 6f
    li s1, 0
6:  c.addi16sp sp, 64
    la ra, 7f
    c.jr ra
    li s1, 0
7:  la t6, 8f
    c.jalr t6
    li s1, 0
8:  la t6, 9f
    sub ra, t6, ra
    li t6, 0
    li t0, 0
    li t1, 0
    li t3, 0
    li a0, 0
    j finish
9:
    .bss
    .align 4
place:
    .space 64
