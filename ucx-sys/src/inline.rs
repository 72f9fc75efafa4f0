//! Macros and inline functions of UCX's headers, written by hand because bindgen cannot generate
//! them.

use crate::{
    UCP_DATATYPE_CONTIG, UCP_DATATYPE_IOV, UCP_DATATYPE_SHIFT, UCS_ERR_LAST, UCS_INPROGRESS,
    ucp_datatype_t, ucs_status_ptr_t, ucs_status_t,
};

/// The datatype of a contiguous array of elements of `element_size` bytes (`ucp_dt_make_contig`).
#[must_use]
pub const fn ucp_dt_make_contig(element_size: u64) -> ucp_datatype_t {
    (element_size << UCP_DATATYPE_SHIFT) | UCP_DATATYPE_CONTIG as ucp_datatype_t
}

/// The datatype of an array of `ucp_dt_iov_t` (`ucp_dt_make_iov`).
#[must_use]
pub const fn ucp_dt_make_iov() -> ucp_datatype_t {
    UCP_DATATYPE_IOV as ucp_datatype_t
}

/// Whether a status is a failure (`UCS_STATUS_IS_ERR`); `UCS_OK` and `UCS_INPROGRESS` are not.
#[must_use]
pub const fn ucs_status_is_err(status: ucs_status_t) -> bool {
    status < 0
}

/// Whether a status pointer carries an error code (`UCS_PTR_IS_ERR`).
#[must_use]
pub fn ucs_ptr_is_err(pointer: ucs_status_ptr_t) -> bool {
    pointer.addr() >= lowest_error()
}

/// Whether a status pointer is a request that must be freed (`UCS_PTR_IS_PTR`).
#[must_use]
pub fn ucs_ptr_is_ptr(pointer: ucs_status_ptr_t) -> bool {
    !pointer.is_null() && !ucs_ptr_is_err(pointer)
}

/// The status in a status pointer (`UCS_PTR_STATUS`); `UCS_INPROGRESS` for a request.
#[must_use]
pub fn ucs_ptr_status(pointer: ucs_status_ptr_t) -> ucs_status_t {
    if ucs_ptr_is_ptr(pointer) {
        UCS_INPROGRESS
    } else {
        // Null is UCS_OK. Any other value is a sign-extended code in [UCS_ERR_LAST, -1], so its low
        // byte is the code.
        pointer.addr().to_le_bytes()[0].cast_signed()
    }
}

/// The smallest pointer value that is an error code. Codes are negative, so they are the highest
/// addresses.
fn lowest_error() -> usize {
    isize::from(UCS_ERR_LAST).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{UCS_ERR_IO_ERROR, UCS_OK};

    fn check(value: isize, is_err: bool, is_ptr: bool, status: ucs_status_t) {
        let pointer = std::ptr::without_provenance_mut(value.cast_unsigned());
        assert_eq!(
            (
                ucs_ptr_is_err(pointer),
                ucs_ptr_is_ptr(pointer),
                ucs_ptr_status(pointer)
            ),
            (is_err, is_ptr, status),
            "{value}"
        );
    }

    #[test]
    fn status_pointers_are_told_apart() {
        check(0, false, false, UCS_OK);
        check(isize::from(UCS_ERR_IO_ERROR), true, false, UCS_ERR_IO_ERROR);
        check(isize::from(UCS_ERR_LAST), true, false, UCS_ERR_LAST);
        check(isize::from(UCS_ERR_LAST) - 1, false, true, UCS_INPROGRESS);
        check(0x7f00_0000_1000, false, true, UCS_INPROGRESS);
    }

    #[test]
    fn datatypes_carry_their_class_in_the_low_bits() {
        assert_eq!(ucp_dt_make_contig(1), 8);
        assert_eq!(ucp_dt_make_contig(4096), 4096 << 3);
        assert_eq!(ucp_dt_make_iov(), 2);
    }
}
