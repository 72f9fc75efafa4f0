# Start and end of each program: the same stack, global pointer and registers on every processor. At the end the program
# writes all its registers and a checksum of its data, and exits with its result.
# Calls have the numbers of Linux, so that an emulator of processes runs the programs as well.

    .text
    .globl _start
_start:
    .option push
    .option norelax
    la gp, __global_pointer$
    .option pop
    la sp, stack_end
    li ra, 0
    li tp, 0
    li t0, 0
    li t1, 0
    li t2, 0
    li s0, 0
    li s1, 0
    li a0, 0
    li a1, 0
    li a2, 0
    li a3, 0
    li a4, 0
    li a5, 0
    li a6, 0
    li a7, 0
    li s2, 0
    li s3, 0
    li s4, 0
    li s5, 0
    li s6, 0
    li s7, 0
    li s8, 0
    li s9, 0
    li s10, 0
    li s11, 0
    li t3, 0
    li t4, 0
    li t5, 0
    li t6, 0
    call main
    .globl finish
finish:
    # Registers that main left.
    la t0, registers
    sd x1, 8(t0)
    sd x2, 16(t0)
    sd x3, 24(t0)
    sd x4, 32(t0)
    sd x6, 48(t0)
    sd x7, 56(t0)
    sd x8, 64(t0)
    sd x9, 72(t0)
    sd x10, 80(t0)
    sd x11, 88(t0)
    sd x12, 96(t0)
    sd x13, 104(t0)
    sd x14, 112(t0)
    sd x15, 120(t0)
    sd x16, 128(t0)
    sd x17, 136(t0)
    sd x18, 144(t0)
    sd x19, 152(t0)
    sd x20, 160(t0)
    sd x21, 168(t0)
    sd x22, 176(t0)
    sd x23, 184(t0)
    sd x24, 192(t0)
    sd x25, 200(t0)
    sd x26, 208(t0)
    sd x27, 216(t0)
    sd x28, 224(t0)
    sd x29, 232(t0)
    sd x30, 240(t0)
    sd x31, 248(t0)
    mv s0, a0
    # FNV-1a of all data, the stack included.
    la t0, __data_start
    la t1, _end
    li t2, 0xcbf29ce484222325
    li t3, 0x100000001b3
1:  bgeu t0, t1, 2f
    lbu t4, 0(t0)
    xor t2, t2, t4
    mul t2, t2, t3
    addi t0, t0, 1
    j 1b
2:  la t0, registers
    sd t2, 256(t0)
    li a0, 1
    la a1, registers
    li a2, 264
    li a7, 64
    ecall
    mv a0, s0
    li a7, 93
    ecall

    .bss
    .align 4
registers:
    .space 272
    .align 4
stack:
    .space 16384
stack_end:
