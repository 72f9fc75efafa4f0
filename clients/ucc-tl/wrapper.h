/* What bindgen reads: UCC's public API. */
#include <ucc/api/ucc.h>
