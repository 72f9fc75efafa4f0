/*
 * libflexio: programs of the host run functions on the DPA of a BlueField.
 *
 * Functions return FLEXIO_STATUS_SUCCESS, or another value and write one line with the reason to stderr. After
 * FLEXIO_STATUS_FATAL_ERR the process on the DPA is lost, and only its destruction succeeds. A process and its objects may be
 * used by one thread at a time. Objects are destroyed before their process. Sizes are bytes. "daddr" is an address on the DPA.
 */
#ifndef FLEXIO_H
#define FLEXIO_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <libflexio/flexio_ver.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
	FLEXIO_STATUS_SUCCESS = 0,
	FLEXIO_STATUS_FAILED = 1,
	FLEXIO_STATUS_TIMEOUT = 2,
	FLEXIO_STATUS_FATAL_ERR = 3,
} flexio_status;

typedef uint64_t flexio_uintptr_t;
/* A function of the DPA, by the host's function with its name, which the compiler driver makes. */
typedef void(flexio_func_t)(void);

struct flexio_app;
struct flexio_process;
struct flexio_thread;
struct flexio_event_handler;
struct flexio_uar;
struct flexio_outbox;
struct flexio_window;
struct flexio_mkey;
struct flexio_cq;
struct flexio_qp;
struct flexio_rmp;
struct flexio_eq;
struct flexio_cmdq;
struct flexio_msg_stream;
struct flexio_resource;

/* Programs. The archive of the compiler driver makes these calls. ------------------------------------------------------ */

struct flexio_app_attr {
	const char *app_name;
	void *app_ptr; /* The ELF file. */
	size_t app_bsize;
	char *app_sig_sec_name; /* NULL */
};

flexio_status flexio_app_create(struct flexio_app_attr *attr, struct flexio_app **app);
flexio_status flexio_app_destroy(struct flexio_app *app);
/* Copies the ELF file to a buffer of at least flexio_app_get_elf_size() bytes. */
size_t flexio_app_get_elf_size(struct flexio_app *app);
flexio_status flexio_app_get_elf(struct flexio_app *app, uint64_t *bin_buff, size_t bin_size);

/* Processes. ----------------------------------------------------------------------------------------------------------- */

struct flexio_process_attr {
	struct ibv_pd *pd; /* NULL: the process gets one of its own. */
	int en_pcc; /* 0 */
};

flexio_status flexio_process_create(struct ibv_context *ibv_ctx,
				    struct flexio_app *app,
				    const struct flexio_process_attr *attr,
				    struct flexio_process **process);
flexio_status flexio_process_destroy(struct flexio_process *process);
struct ibv_pd *flexio_process_get_pd(struct flexio_process *process);
/* The page of doorbells that the process has from its start. */
struct flexio_uar *flexio_process_get_uar(struct flexio_process *process);
uint32_t flexio_uar_get_id(struct flexio_uar *uar);
/* Calls a function on the DPA with the arguments that it declares, and waits for its result. */
flexio_status flexio_process_call(struct flexio_process *process, flexio_func_t *func, uint64_t *func_ret, ...);
/* FLEXIO_STATUS_FATAL_ERR after a fault, which a line on stderr describes. */
flexio_status flexio_err_status_get(struct flexio_process *process);
/* Writes registers and memory to outfile.N.core, or to flexio_dev.N.core, an ELF core file for gdb. Also after a fault. Memory
 * behind windows is left out. */
flexio_status flexio_coredump_create(struct flexio_process *process, const char *outfile);

/* Memory. -------------------------------------------------------------------------------------------------------------- */

flexio_status flexio_buf_dev_alloc(struct flexio_process *process, size_t buff_bsize, flexio_uintptr_t *dest_daddr);
flexio_status flexio_buf_dev_free(struct flexio_process *process, flexio_uintptr_t daddr);
flexio_status flexio_buf_dev_memset(struct flexio_process *process, int value, size_t buff_bsize, flexio_uintptr_t daddr);
/* Copies to, and from, one allocation or variables of the program. */
flexio_status flexio_host2dev_memcpy(struct flexio_process *process,
				     void *src_haddr,
				     size_t buff_bsize,
				     flexio_uintptr_t dest_daddr);
flexio_status flexio_dev2host_memcpy(struct flexio_process *process,
				     void *dest_haddr,
				     size_t buff_bsize,
				     flexio_uintptr_t src_daddr);
/* Allocates, and copies there. */
flexio_status flexio_copy_from_host(struct flexio_process *process,
				    void *src_haddr,
				    size_t buff_bsize,
				    flexio_uintptr_t *dest_daddr_p);

struct flexio_mkey_attr {
	struct ibv_pd *pd; /* That of the process. */
	flexio_uintptr_t daddr;
	size_t len;
	int access; /* IBV_ACCESS_* */
};

flexio_status flexio_device_mkey_create(struct flexio_process *process,
					struct flexio_mkey_attr *fattr,
					struct flexio_mkey **mkey);
flexio_status flexio_device_mkey_destroy(struct flexio_mkey *mkey);
uint32_t flexio_mkey_get_id(struct flexio_mkey *mkey);

/* Windows onto memory of the host, by keys of the process's domain. */
flexio_status flexio_window_create(struct flexio_process *process, struct ibv_pd *pd, struct flexio_window **window);
flexio_status flexio_window_destroy(struct flexio_window *window);
uint32_t flexio_window_get_id(struct flexio_window *window);

/* Doorbells: a page for queues, and its number for device code. */
struct flexio_outbox_attr {
	uint32_t en_pcc; /* 0 */
};

flexio_status flexio_outbox_create(struct flexio_process *process,
				   struct flexio_outbox_attr *fattr,
				   struct flexio_outbox **outbox);
flexio_status flexio_outbox_destroy(struct flexio_outbox *outbox);
uint32_t flexio_outbox_get_id(struct flexio_outbox *outbox);
struct flexio_uar *flexio_outbox_get_uar(struct flexio_outbox *outbox);

/* Event handlers. -------------------------------------------------------------------------------------------------------- */

enum flexio_affinity_type {
	FLEXIO_AFFINITY_NONE = 0,
	FLEXIO_AFFINITY_STRICT = 1,
	FLEXIO_AFFINITY_GROUP = 2,
};

struct flexio_affinity {
	enum flexio_affinity_type type;
	uint32_t id; /* Execution unit, 0 to 253. */
};

struct flexio_event_handler_attr {
	flexio_func_t *host_stub_func; /* void function(uint64_t argument) */
	flexio_uintptr_t thread_local_storage_daddr;
	struct flexio_affinity affinity;
	int continuable; /* 0 */
};

flexio_status flexio_event_handler_create(struct flexio_process *process,
					  struct flexio_event_handler_attr *fattr,
					  struct flexio_event_handler **event_handler);
/* From now on events start the function with this argument. */
flexio_status flexio_event_handler_run(struct flexio_event_handler *event_handler, uint64_t user_arg);
flexio_status flexio_event_handler_destroy(struct flexio_event_handler *event_handler);
struct flexio_thread *flexio_event_handler_get_thread(struct flexio_event_handler *event_handler);
/* The number by which device code activates it. */
uint32_t flexio_event_handler_get_id(struct flexio_event_handler *event_handler);

/* Event queues: an entry of 64 bytes for each event of the completion queues that name the queue. ------------------------ */

struct flexio_eq_attr {
	uint8_t log_eq_ring_depth;
	uint32_t uar_id; /* 0 */
	struct flexio_thread *thread; /* An event activates it, and after flexio_dev_eq_rearm() the next one does; or NULL. */
};

/* The library allocates the ring. Its entries have the owner bit 1 at first. */
flexio_status flexio_eq_create(struct flexio_process *process,
			       struct ibv_context *ibv_ctx,
			       struct flexio_eq_attr *attr,
			       struct flexio_eq **eq);
flexio_status flexio_eq_destroy(struct flexio_eq *eq);
uint32_t flexio_eq_get_eq_num(struct flexio_eq *eq);
flexio_uintptr_t flexio_eq_get_ring_daddr(struct flexio_eq *eq);

/* Command queues: tasks that threads of the DPA execute while the host goes on. ----------------------------------------- */

enum flexio_cmdq_state {
	FLEXIO_CMDQ_STATE_PENDING = 0,
	FLEXIO_CMDQ_STATE_RUNNING = 1,
};

struct flexio_cmdq_attr {
	int workers; /* Threads, 1 to 254. */
	int batch_size; /* Tasks that a thread takes at a time, at least 1. */
	enum flexio_cmdq_state state;
};

struct flexio_cmdq;

flexio_status flexio_cmdq_create(struct flexio_process *process,
				 struct flexio_cmdq_attr *fattr,
				 struct flexio_cmdq **cmdq);
/* Tasks that run end at once. */
flexio_status flexio_cmdq_destroy(struct flexio_cmdq *cmdq);
/* A function with one uint64_t. At most 65,536 tasks wait. */
flexio_status flexio_cmdq_task_add(struct flexio_cmdq *cmdq, flexio_func_t *host_func, uint64_t arg);
flexio_status flexio_cmdq_state_running(struct flexio_cmdq *cmdq);
/* 1 after all tasks, and after a fault, which flexio_err_status_get() reports. */
int flexio_cmdq_is_empty(struct flexio_cmdq *cmdq);

/* Queues, whose rings and doorbell records the program allocates on the DPA. --------------------------------------------- */

enum flexio_memtype {
	FLEXIO_MEMTYPE_DPA = 0,
	FLEXIO_MEMTYPE_HOST = 1,
};

struct flexio_qmem {
	enum flexio_memtype memtype; /* FLEXIO_MEMTYPE_DPA */
	union {
		flexio_uintptr_t daddr;
		uint64_t humem_offset;
	};
	uint32_t umem_id;
};

enum flexio_cq_element_type {
	FLEXIO_CQ_ELEMENT_TYPE_DPA_THREAD = 0,
	FLEXIO_CQ_ELEMENT_TYPE_EXT_EQ = 2,
	FLEXIO_CQ_ELEMENT_TYPE_NON_DPA_CQ = 8,
	FLEXIO_CQ_ELEMENT_TYPE_MSIX_EMULATED = 9,
};

struct flexio_cq_attr {
	uint8_t log_cq_depth;
	uint8_t overrun_ignore;
	enum flexio_cq_element_type element_type; /* DPA_THREAD, EXT_EQ or NON_DPA_CQ */
	union {
		struct flexio_thread *thread; /* For DPA_THREAD. */
		struct flexio_eq *eq; /* For EXT_EQ. */
	};
	uint32_t uar_id;
	flexio_uintptr_t cq_dbr_daddr; /* 8 bytes */
	struct flexio_qmem cq_ring_qmem; /* 64 bytes each, the last one 0xf1 at first */
	uint8_t no_arm; /* The queue is first armed by device code. */
};

/* `ibv_ctx` is NULL or that of the process. A queue for a thread is armed at once, except with no_arm. */
flexio_status flexio_cq_create(struct flexio_process *process,
			       struct ibv_context *ibv_ctx,
			       const struct flexio_cq_attr *fattr,
			       struct flexio_cq **cq);
flexio_status flexio_cq_destroy(struct flexio_cq *cq);
uint32_t flexio_cq_get_cq_num(struct flexio_cq *cq);

enum flexio_wq_type {
	FLEXIO_WQ_TYPE_LINKED_LIST = 0,
	FLEXIO_WQ_TYPE_CYCLIC = 1,
};

struct flexio_wq_attr {
	uint8_t log_wq_stride; /* log2 of the bytes of an entry, 5 to 9: 16 unused bytes, and data segments of 16. */
	uint8_t log_wq_depth;
	uint32_t uar_id; /* 0 */
	uint32_t user_index; /* 0 */
	struct ibv_pd *pd; /* NULL or that of the process. */
	union {
		struct {
			enum flexio_wq_type wq_type; /* CYCLIC */
		} rq;
	};
	struct flexio_qmem wq_ring_qmem;
	struct flexio_qmem wq_dbr_qmem; /* 8 bytes; the counter of entries, 4 bytes big-endian, is first. */
};

/* A receive queue that queue pairs share. The device takes its entries in the order of the ring. */
flexio_status flexio_rmp_create(struct flexio_process *process,
				struct ibv_context *ibv_ctx,
				const struct flexio_wq_attr *fattr,
				struct flexio_rmp **rmp);
flexio_status flexio_rmp_destroy(struct flexio_rmp *rmp);
/* Its number, for flexio_qp_attr.rmpqn. */
uint32_t flexio_rmp_get_wq_num(struct flexio_rmp *rmp);

enum flexio_qp_transport {
	FLEXIO_QPC_ST_RC = 0,
	FLEXIO_QPC_ST_UC = 1,
	FLEXIO_QPC_ST_UD = 2,
};

enum flexio_qp_rq_type {
	FLEXIO_QP_QPC_RQ_TYPE_REGULAR = 0,
	FLEXIO_QP_QPC_RQ_TYPE_SRQ_RMP_XRC_SRQ_XRQ = 1,
	FLEXIO_QP_QPC_RQ_TYPE_ZERO_SIZE_RQ = 3,
};

enum flexio_qp_state {
	FLEXIO_QP_STATE_RST = 0,
	FLEXIO_QP_STATE_INIT = 1,
	FLEXIO_QP_STATE_RTR = 2,
	FLEXIO_QP_STATE_RTS = 3,
	FLEXIO_QP_STATE_ERR = 6,
};

enum flexio_qp_qpc_mtu {
	FLEXIO_QP_QPC_MTU_BYTES_256 = 1,
	FLEXIO_QP_QPC_MTU_BYTES_512 = 2,
	FLEXIO_QP_QPC_MTU_BYTES_1K = 3,
	FLEXIO_QP_QPC_MTU_BYTES_2K = 4,
	FLEXIO_QP_QPC_MTU_BYTES_4K = 5,
};

/* Requests that a queue pair may have; may be combined. */
enum flexio_qp_wr {
	FLEXIO_QP_WR_RDMA_WRITE = 1 << 0,
	FLEXIO_QP_WR_RDMA_READ = 1 << 1,
	FLEXIO_QP_WR_ATOMIC_CMP_AND_SWAP = 1 << 2,
};

struct flexio_qp_attr {
	/* For the creation. */
	enum flexio_qp_transport transport_type;
	struct ibv_pd *pd; /* NULL or that of the process. */
	uint8_t log_sq_depth; /* Blocks of 64 bytes. */
	uint8_t log_rq_depth; /* Entries of 16 bytes. */
	enum flexio_qp_rq_type rq_type;
	struct flexio_qmem qp_wq_buff_qmem; /* The receive entries, and then the blocks. */
	struct flexio_qmem qp_wq_dbr_qmem; /* 8 bytes */
	uint32_t uar_id;
	uint32_t sq_cqn;
	uint32_t rq_cqn;
	uint32_t rmpqn; /* The shared receive queue, for FLEXIO_QP_QPC_RQ_TYPE_SRQ_RMP_XRC_SRQ_XRQ. */
	uint32_t user_index;
	uint32_t ops_flag;
	/* For changes of the state. */
	enum flexio_qp_state next_state;
	int qp_access_mask; /* IBV_ACCESS_* */
	uint8_t vhca_port_num;
	uint32_t q_key;
	uint32_t remote_qp_num;
	uint16_t rlid;
	uint8_t grh; /* The path has a GID. */
	union ibv_gid rgid_or_rip;
	const uint8_t *dest_mac; /* 6 bytes, or NULL. */
	uint8_t gid_table_index;
	enum flexio_qp_qpc_mtu path_mtu;
	uint32_t fl; /* 0 */
	uint8_t min_rnr_nak_timer;
	uint8_t log_rra_max;
	uint8_t log_sra_max;
	uint8_t retry_count;
	uint8_t rnr_retry;
	uint8_t ack_timeout;
	uint16_t udp_sport; /* Without effect. */
	uint32_t next_rcv_psn;
	uint32_t next_send_psn;
};

/* Attributes to change beyond those that a state needs: none. */
struct flexio_qp_attr_opt_param_mask {
	uint64_t reserved;
};

flexio_status flexio_qp_create(struct flexio_process *process,
			       struct ibv_context *ibv_ctx,
			       struct flexio_qp_attr *qp_fattr,
			       struct flexio_qp **qp);
flexio_status flexio_qp_modify(struct flexio_qp *qp,
			       struct flexio_qp_attr *fattr,
			       struct flexio_qp_attr_opt_param_mask *mask);
flexio_status flexio_qp_destroy(struct flexio_qp *qp);
uint32_t flexio_qp_get_qp_num(struct flexio_qp *qp);

/* Messages of device code. ------------------------------------------------------------------------------------------------ */

typedef enum {
	FLEXIO_LOG_DEV_SYNC_MODE_SYNC = 0,
	FLEXIO_LOG_DEV_SYNC_MODE_ASYNC = 1,
	FLEXIO_LOG_DEV_SYNC_MODE_BATCH = 2,
} flexio_log_dev_sync_mode;

typedef struct flexio_msg_stream_attr {
	size_t data_bsize; /* Without effect: 4,096 messages wait. */
	flexio_log_dev_sync_mode sync_mode; /* Messages are written after each call, and by a flush. */
	uint8_t level; /* The most detailed level to write, or 0 for all. */
} flexio_msg_stream_attr_t;

/* The first stream of a process has the number 0, that of flexio_dev_print(). `ppthread` is NULL. */
flexio_status flexio_msg_stream_create(struct flexio_process *process,
				       flexio_msg_stream_attr_t *stream_fattr,
				       FILE *out,
				       void *ppthread,
				       struct flexio_msg_stream **stream);
flexio_status flexio_msg_stream_flush(struct flexio_msg_stream *stream);
flexio_status flexio_msg_stream_destroy(struct flexio_msg_stream *stream);
int flexio_msg_stream_get_id(struct flexio_msg_stream *stream);

/* Execution units of a program, from a file with lines such as `my_app: 3, 8-11`, of at most 1 MiB. ------------------- */

/* Fails if the file has no line for the key, or a bad one. */
flexio_status flexio_resources_create(const char *key, const char *text, size_t length, struct flexio_resource **resource);
flexio_status flexio_resources_destroy(struct flexio_resource *resource);
uint32_t flexio_resources_get_eus_num(struct flexio_resource *resource);
/* In ascending order; valid as long as the resource. */
uint32_t *flexio_resources_get_eus(struct flexio_resource *resource);
/* Groups of units: none. */
uint32_t flexio_resources_get_eugs_num(struct flexio_resource *resource);

#ifdef __cplusplus
}
#endif

#endif
