/*
 * Devices: the RDMA devices of this process, as libibverbs lists them.
 */
#ifndef DOCA_DEV_H
#define DOCA_DEV_H

#include <doca_error.h>
#include <doca_types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of names, with the NUL at the end. */
#define DOCA_DEVINFO_IBDEV_NAME_SIZE 64
#define DOCA_DEVINFO_IFACE_NAME_SIZE 256
#define DOCA_DEVINFO_PCI_ADDR_SIZE 13
#define DOCA_DEVINFO_PCI_BDF_SIZE 8
#define DOCA_DEVINFO_VUID_SIZE 128
#define DOCA_DEVINFO_REP_VUID_SIZE 128

struct doca_dev;
struct doca_dev_rep;
struct doca_devinfo;
struct doca_devinfo_rep;

enum doca_devinfo_rep_filter {
	DOCA_DEVINFO_REP_FILTER_ALL = 0,
	DOCA_DEVINFO_REP_FILTER_NET = 1 << 1,
	DOCA_DEVINFO_REP_FILTER_EMULATED = 1 << 2,
};

/* All mlx5 devices, an array of `count` elements, which are valid until the list is destroyed. */
doca_error_t doca_devinfo_create_list(struct doca_devinfo ***list, uint32_t *count);
doca_error_t doca_devinfo_destroy_list(struct doca_devinfo **list);

/* Name of the RDMA device. DOCA_ERROR_INVALID_VALUE if `size` is too small. */
doca_error_t doca_devinfo_get_ibdev_name(const struct doca_devinfo *devinfo, char *name, uint32_t size);
/* Name of the first network interface of the device. DOCA_ERROR_NOT_FOUND if it has none. */
doca_error_t doca_devinfo_get_iface_name(const struct doca_devinfo *devinfo, char *name, uint32_t size);
/* PCI address, as 0000:03:00.0. DOCA_ERROR_NOT_FOUND if the system does not state it. */
doca_error_t doca_devinfo_get_pci_addr_str(const struct doca_devinfo *devinfo, char *address);
/* 1 if the address, with or without domain, is the device's. */
doca_error_t doca_devinfo_is_equal_pci_addr(const struct doca_devinfo *devinfo, const char *address, uint8_t *is_equal);
doca_error_t doca_devinfo_get_pci_func_type(const struct doca_devinfo *devinfo, enum doca_pci_func_type *type);
/* Number of a subfunction. DOCA_ERROR_NOT_SUPPORTED for another function. */
doca_error_t doca_devinfo_get_sf_index(const struct doca_devinfo *devinfo, uint32_t *index);
/* 1 if the device has network representors. This library offers none, so 0. */
doca_error_t doca_devinfo_rep_cap_is_filter_net_supported(const struct doca_devinfo *devinfo, uint8_t *is_supported);

/* Opens a device. */
doca_error_t doca_dev_open(struct doca_devinfo *devinfo, struct doca_dev **dev);
/* Closes a device. DOCA_ERROR_IN_USE while an object uses it. */
doca_error_t doca_dev_close(struct doca_dev *dev);
/* The element of an open device, valid until it is closed. */
struct doca_devinfo *doca_dev_as_devinfo(const struct doca_dev *dev);

/* Representors: not supported, and each call says so. */
doca_error_t doca_devinfo_rep_create_list(struct doca_dev *dev,
					  int filter,
					  struct doca_devinfo_rep ***list,
					  uint32_t *count);
doca_error_t doca_devinfo_rep_destroy_list(struct doca_devinfo_rep **list);
doca_error_t doca_devinfo_rep_get_vuid(const struct doca_devinfo_rep *rep, char *vuid, uint32_t size);
doca_error_t doca_devinfo_rep_is_equal_pci_addr(const struct doca_devinfo_rep *rep, const char *address, uint8_t *is_equal);
doca_error_t doca_dev_rep_open(struct doca_devinfo_rep *rep, struct doca_dev_rep **dev);
doca_error_t doca_dev_rep_close(struct doca_dev_rep *dev);

#ifdef __cplusplus
}
#endif

#endif
