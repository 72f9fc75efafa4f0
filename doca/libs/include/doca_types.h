/*
 * Types that several headers use.
 *
 * No object may be used by two threads at the same time. A call that finds another thread inside a call on the same object
 * changes nothing, returns DOCA_ERROR_IN_USE, and names both threads in the SDK log. The functions of a started sync event
 * that read, change or await its value are an exception.
 *
 * A function that gets NULL or an object that was destroyed returns DOCA_ERROR_INVALID_VALUE.
 */
#ifndef DOCA_TYPES_H
#define DOCA_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
/* Public programs use its functions without including it. */
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A value that the library carries for the program. */
union doca_data {
	void *ptr;
	uint64_t u64;
};

/* Rights to a memory range or of a connection; may be combined. */
enum doca_access_flag {
	DOCA_ACCESS_FLAG_LOCAL_READ_ONLY = 0,
	DOCA_ACCESS_FLAG_LOCAL_READ_WRITE = 1 << 0,
	DOCA_ACCESS_FLAG_RDMA_READ = 1 << 1,
	DOCA_ACCESS_FLAG_RDMA_WRITE = 1 << 2,
	DOCA_ACCESS_FLAG_RDMA_ATOMIC = 1 << 3,
	DOCA_ACCESS_FLAG_PCI_READ_ONLY = 1 << 4,
	DOCA_ACCESS_FLAG_PCI_READ_WRITE = 1 << 5,
	DOCA_ACCESS_FLAG_PCI_RELAXED_ORDERING = 1 << 6,
};

/* Kind of a device's function. */
enum doca_pci_func_type {
	DOCA_PCI_FUNC_TYPE_PF = 0,
	DOCA_PCI_FUNC_TYPE_VF = 1,
	DOCA_PCI_FUNC_TYPE_SF = 2,
};

/* Handles for device code: arguments of kernels, or values in the memory of the DPA. */
typedef uint64_t doca_dpa_dev_t;
typedef uint64_t doca_dpa_dev_uintptr_t;
typedef uint64_t doca_dpa_dev_completion_t;
typedef uint64_t doca_dpa_dev_notification_completion_t;
typedef uint64_t doca_dpa_dev_async_ops_t;
typedef uint64_t doca_dpa_dev_hash_table_t;
typedef uint64_t doca_dpa_dev_rdma_t;
typedef uint64_t doca_dpa_dev_buf_arr_t;
typedef uint32_t doca_dpa_dev_mmap_t;

#ifdef __cplusplus
}
#endif

#endif
