/*
 * Programmable congestion control: status, ports and counters of the device. The library and the user's code include it.
 */
#ifndef DOCA_PCC_DEV_COMMON_H_
#define DOCA_PCC_DEV_COMMON_H_

#ifndef DOCA_DPA_DEVICE
#define DOCA_DPA_DEVICE
#endif

#include <stddef.h>
#include <stdint.h>

/* dpacc defines these. Other compilers compile for BlueField-3, unless they define __NV_DPA. */
#ifndef __NV_DPA_BF3
#define __NV_DPA_BF3 1
#endif
#ifndef __NV_DPA_CX8
#define __NV_DPA_CX8 2
#endif
#ifndef __NV_DPA
#define __NV_DPA __NV_DPA_BF3
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define ALWAYS_INLINE __attribute__((always_inline))
#define FORCE_INLINE static inline ALWAYS_INLINE

typedef enum {
	DOCA_PCC_DEV_STATUS_OK = 0,
	DOCA_PCC_DEV_STATUS_FAIL = 1,
} doca_pcc_dev_error_t;

typedef enum {
	DOCA_PCC_DEV_NIC_COUNTER_TYPE_RX_BYTES = 1,
	DOCA_PCC_DEV_NIC_COUNTER_TYPE_TX_BYTES = 2,
} doca_pcc_dev_nic_port_counter_types_t;

/* Number of a counter: port in bits 0 to 3, type in bits 4 to 7, plane in bits 8 to 11, and bit 24. */
#define DOCA_PCC_DEV_GET_PORT_COUNTER_ID(port, type, plane)                                                            \
	(((port)&0xf) | ((type)&0xf) << 4 | ((plane)&0xf) << 8 | 1 << 24)

/* Ports of the processor that the code is compiled for. */
#if __NV_DPA >= __NV_DPA_CX8
#define DOCA_PCC_DEV_MAX_NUM_PORTS (8)
#else
#define DOCA_PCC_DEV_MAX_NUM_PORTS (4)
#endif

/* Names the counters that doca_pcc_dev_nic_counters_sample() reads, and the place of their values, 32 bits each. */
void doca_pcc_dev_nic_counters_config(uint32_t *counter_ids, uint32_t num_counters, uint32_t *values);
void doca_pcc_dev_nic_counters_sample(void);

/* Mask of the ports, planes of a port, and its speed in Gb/s. */
uint32_t doca_pcc_dev_get_logical_ports(void);
uint32_t doca_pcc_dev_get_port_planes(uint32_t portid);
uint32_t doca_pcc_dev_get_port_speed(uint32_t portid);

/* Of the user, optional: the state or speed of a port has changed. */
void doca_pcc_dev_user_port_info_changed(uint32_t portid) __attribute__((weak));

#ifdef __cplusplus
}
#endif

#endif
