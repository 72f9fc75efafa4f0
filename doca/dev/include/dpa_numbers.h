/* Numbers of intrinsics and of the outbox. A test of doca/dev makes the text from the crate's tables. */
#ifndef DPA_NUMBERS_H
#define DPA_NUMBERS_H

#define DPA_OPCODE 0xb
#define DPA_OP_FENCE 0x1
#define DPA_OP_WINDOW_WRITEBACK 0x2
#define DPA_OP_WINDOW_READ_INV 0x3
#define DPA_OP_MEMORY_WRITEBACK 0x4
#define DPA_OP_DATA_IGNORE 0x5
#define DPA_OP_FXP_RCP 0x10
#define DPA_OP_FXP_POW2 0x11
#define DPA_OP_FXP_LOG2 0x12
#define __DPA_HEAP 0x1
#define __DPA_MEMORY 0x2
#define __DPA_MMIO 0x3
#define __DPA_SYSTEM 0x4
#define __DPA_R 0x1
#define __DPA_W 0x2
#define __DPA_RW 0x3
#define DPA_OUTBOX 0x3000000000
#define DPA_OUTBOX_CQ_DB 0x100
#define DPA_OUTBOX_EQ_DB_REARM 0x140
#define DPA_OUTBOX_EQ_DB_NO_REARM 0x180
#define DPA_OUTBOX_SXD_DB 0x1c0
#define DPA_OUTBOX_RXT_DB 0x280

#endif
